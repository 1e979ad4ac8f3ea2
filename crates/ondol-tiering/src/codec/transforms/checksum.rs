use ondol_catalog::{BuiltTransform, TRANSFORMS, TransformRow, linkme::distributed_slice};

use crate::codec::parameters::Parameters;

#[distributed_slice(TRANSFORMS)]
#[linkme(crate = ondol_catalog::linkme)]
static CHECKSUM: TransformRow = TransformRow {
    id: 0,
    name: "checksum",
    summary: "Compares what is loaded with the checksum in its trailer; on by default.",
    parameters: &[(
        "require",
        "whether an object without a checksum, as LMCache writes it, is taken for damaged (false)",
    )],
    build: |given| {
        let mut parameters = Parameters::of("checksum", given);
        let require = parameters.flag("require")?;
        parameters.finish()?;
        Ok(BuiltTransform::Check { require })
    },
};

use ondol_catalog::{
    BuiltTransform, TRANSFORMS, Transform, TransformRow, TransformedObject,
    linkme::distributed_slice,
};
use zstd::bulk;
use zstd::zstd_safe::{compress_bound, get_frame_content_size};

use crate::codec::parameters::Parameters;

#[distributed_slice(TRANSFORMS)]
#[linkme(crate = ondol_catalog::linkme)]
static ZSTD: TransformRow = TransformRow {
    id: 2,
    name: "zstd",
    summary: "Compresses well.",
    parameters: &[("level", "from 1, fast, to 22, small (3)")],
    build: |given| {
        let mut parameters = Parameters::of("zstd", given);
        let level = parameters.integer("level", 1..=22, 3)? as i32;
        parameters.finish()?;
        Ok(BuiltTransform::Bytes(Box::new(Zstd { level })))
    },
};

/// One zstd frame that says its length.
#[derive(Debug)]
struct Zstd {
    level: i32,
}

impl Transform for Zstd {
    fn encode(&self, _: &TransformedObject<'_>, bytes: &[u8]) -> Result<Vec<u8>, String> {
        bulk::compress(bytes, self.level).map_err(|error| format!("zstd: {error}"))
    }

    fn decode(
        &self,
        _: &TransformedObject<'_>,
        stored: &[u8],
        limit: u64,
    ) -> Result<Vec<u8>, String> {
        let Ok(Some(len)) = get_frame_content_size(stored) else {
            return Err("zstd: it is no frame that says its length".to_owned());
        };
        if len > limit {
            return Err(format!(
                "zstd: it would decompress to {len} bytes; expected at most {limit}"
            ));
        }
        let bytes =
            bulk::decompress(stored, len as usize).map_err(|error| format!("zstd: {error}"))?;
        if bytes.len() as u64 != len {
            return Err(format!(
                "zstd: it decompresses to {} bytes; expected {len}",
                bytes.len()
            ));
        }
        Ok(bytes)
    }

    fn max_encoded_len(&self, len: u64) -> u64 {
        compress_bound(len as usize) as u64
    }
}

use lz4_flex::block;
use ondol_catalog::{
    BuiltTransform, TRANSFORMS, Transform, TransformRow, TransformedObject,
    linkme::distributed_slice,
};

use crate::codec::parameters::Parameters;

#[distributed_slice(TRANSFORMS)]
#[linkme(crate = ondol_catalog::linkme)]
static LZ4: TransformRow = TransformRow {
    id: 1,
    name: "lz4",
    summary: "Compresses fast.",
    parameters: &[],
    build: |given| {
        Parameters::of("lz4", given).finish()?;
        Ok(BuiltTransform::Bytes(Box::new(Lz4)))
    },
};

/// The most bytes that an LZ4 block holds.
const MAX_BLOCK: usize = 0x7e00_0000;
/// An LZ4 block grows by less than this factor when it is decompressed.
const MAX_RATIO: usize = 255;

/// Four bytes of length, then one LZ4 block.
#[derive(Debug)]
struct Lz4;

impl Transform for Lz4 {
    fn encode(&self, _: &TransformedObject<'_>, bytes: &[u8]) -> Result<Vec<u8>, String> {
        if bytes.len() > MAX_BLOCK {
            return Err(format!(
                "lz4: it has {} bytes; expected at most {MAX_BLOCK}",
                bytes.len()
            ));
        }
        Ok(block::compress_prepend_size(bytes))
    }

    fn decode(
        &self,
        _: &TransformedObject<'_>,
        stored: &[u8],
        limit: u64,
    ) -> Result<Vec<u8>, String> {
        let (len, compressed) =
            block::uncompressed_size(stored).map_err(|error| format!("lz4: {error}"))?;
        let most = compressed.len().saturating_mul(MAX_RATIO);
        if len as u64 > limit || len > most {
            return Err(format!(
                "lz4: it would decompress to {len} bytes; expected at most {}",
                limit.min(most as u64)
            ));
        }
        let mut bytes = vec![0; len];
        match block::decompress_into(compressed, &mut bytes) {
            Ok(found) if found == len => Ok(bytes),
            Ok(found) => Err(format!(
                "lz4: it decompresses to {found} bytes; expected {len}"
            )),
            Err(error) => Err(format!("lz4: {error}")),
        }
    }

    fn max_encoded_len(&self, len: u64) -> u64 {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        4 + block::get_maximum_output_size(len.min(MAX_BLOCK)) as u64
    }
}

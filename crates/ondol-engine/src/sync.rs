//! Bytes of objects made durable, before their records are.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use ondol_directory::Directory;
use ondol_memory::Device;
use ondol_shm::Location;

/// Makes the bytes of these objects durable, once for each file.
pub(crate) fn sync_bytes<'a>(
    directory: &Directory,
    devices: &[Device],
    places: impl Iterator<Item = &'a Location>,
) -> io::Result<()> {
    let mut ranges: BTreeMap<usize, Vec<Range<u64>>> = BTreeMap::new();
    directory.with_pool(|pool| {
        for location in places {
            let Some(region) = pool.region(location.page.region) else {
                continue;
            };
            let (extent, stride) = (region.extent(), region.stride());
            let start = u64::from(location.page.index).saturating_mul(stride);
            // What does not fit is refused later.
            let range = start.min(extent.len)..start.saturating_add(stride).min(extent.len);
            let file = ranges.entry(extent.backing.0 as usize).or_default();
            file.push(extent.offset + range.start..extent.offset + range.end);
        }
    });
    let mut backings = devices.iter().flat_map(Device::backings).enumerate();
    for (wanted, ranges) in ranges {
        if let Some((_, file)) = backings.find(|(index, _)| *index == wanted) {
            file.sync_ranges(ranges.into_iter())?;
        }
    }
    Ok(())
}

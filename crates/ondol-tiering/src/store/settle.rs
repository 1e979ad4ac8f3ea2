use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ondol_plugin::Key;
use parking_lot::Mutex;

/// For the policy `skip_l1`: how many backends have an object before them still.
///
/// It is bounded by what the backends' queues hold.
#[derive(Debug, Default)]
pub(super) struct Outstanding(Mutex<HashMap<Key, u32, foldhash::fast::RandomState>>);

impl Outstanding {
    /// `backends` more have these objects before them.
    pub(super) fn add<'a>(&self, keys: impl Iterator<Item = &'a Key>, backends: u32) {
        if backends == 0 {
            return;
        }
        let mut outstanding = self.0.lock();
        for key in keys {
            *outstanding.entry(key.clone()).or_default() += backends;
        }
    }

    /// One backend is done with these objects, in whatever way; those that no backend has before it any more.
    pub(super) fn done<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> Vec<Key> {
        let mut outstanding = self.0.lock();
        keys.filter(|key| match outstanding.entry((*key).clone()) {
            Entry::Occupied(mut entry) if *entry.get() > 1 => {
                *entry.get_mut() -= 1;
                false
            }
            Entry::Occupied(entry) => {
                entry.remove();
                true
            }
            Entry::Vacant(_) => true,
        })
        .cloned()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_settled_by_the_last_backend() {
        let keys = [Key::integer(1), Key::integer(2)];
        let outstanding = Outstanding::default();
        outstanding.add(keys.iter(), 2);
        assert!(outstanding.done(keys.iter()).is_empty());
        assert_eq!(outstanding.done(keys[..1].iter()), keys[..1]);
        outstanding.add(keys[1..].iter(), 1);
        assert!(outstanding.done(keys[1..].iter()).is_empty());
        assert_eq!(outstanding.done(keys[1..].iter()), keys[1..]);
        assert!(outstanding.0.lock().is_empty());
    }
}

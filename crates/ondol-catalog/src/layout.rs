use linkme::distributed_slice;

/// The layout of a type that other processes or later versions read, frozen under a revision number.
///
/// A layout that changes without its revision fails the contract check.
#[derive(Clone, Copy, Debug)]
pub struct FrozenLayout {
    /// The type's name.
    pub name: &'static str,
    /// Revision; raise it with every change of the rest.
    pub revision: u32,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Fields in order of their offset.
    pub fields: &'static [FrozenField],
}

/// One field of a [`FrozenLayout`].
#[derive(Clone, Copy, Debug)]
pub struct FrozenField {
    /// The field's name.
    pub name: &'static str,
    /// Offset in bytes from the start of the type.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// Every frozen layout that is linked in.
#[distributed_slice]
pub static LAYOUTS: [FrozenLayout];

/// Every frozen layout that is linked in, by name.
pub fn layouts() -> Vec<&'static FrozenLayout> {
    crate::sorted_by_name(&LAYOUTS, |layout| layout.name)
}

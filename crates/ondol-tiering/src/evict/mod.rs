//! Making room in backends that do not do it themselves.

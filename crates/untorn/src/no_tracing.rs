//! The macros of the crate `tracing` in a build without it. They check an event and make nothing of it.

/// Takes an event of this crate: its fields, then its message. Nothing is evaluated, but a variable that only an event
/// uses counts as used.
macro_rules! event {
    (@of $message:literal $($arguments:tt)*) => { _ = format_args!($message $($arguments)*) };
    (@of $($name:ident =)? % $value:expr, $($rest:tt)+) => { (_ = &$value, $crate::no_tracing::event!(@of $($rest)+)) };
    (@of $($name:ident =)? ? $value:expr, $($rest:tt)+) => { (_ = &$value, $crate::no_tracing::event!(@of $($rest)+)) };
    (@of $name:ident = $value:expr, $($rest:tt)+) => { (_ = &$value, $crate::no_tracing::event!(@of $($rest)+)) };
    (@of $name:ident, $($rest:tt)+) => { (_ = &$name, $crate::no_tracing::event!(@of $($rest)+)) };
    ($($event:tt)+) => { if false { _ = $crate::no_tracing::event!(@of $($event)+); } };
}
pub(crate) use event;

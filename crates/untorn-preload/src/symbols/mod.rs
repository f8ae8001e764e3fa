//! The C library's functions that the layer replaces, by what they are about.

mod data;
mod descriptors;
mod memory;
mod messages;
mod names;
mod numbers;
mod open;
mod print;
mod processes;
mod refused;
mod status;
mod stdio;
mod zero_copy;

/// Defines functions of the C library: each returns what `= …` gives, if that is `Some`, and else what the C library's own
/// function of that name does.
macro_rules! calls {
    ($([$($name:ident)+] $arguments:tt -> $result:ty = $served:expr;)*) => {
        $(calls! { @each [$($name)+] $arguments, $result, $served })*
    };
    (@each [$($name:ident)+] $arguments:tt, $result:ty, $served:expr) => {
        $(calls! { @one $name $arguments, $result, $served })+
    };
    (@one $name:ident ($($argument:ident: $type:ty),*), $result:ty, $served:expr) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let served: Option<$result> = $served;
            match served {
                Some(served) => served,
                None => $crate::real::real!($name($($argument: $type),*) -> $result),
            }
        }
    };
}
use calls;

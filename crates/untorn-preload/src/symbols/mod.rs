//! The C library's functions that the layer replaces, by what they are about.

mod attributes;
mod data;
mod descriptors;
mod exec;
mod listings;
mod memory;
mod messages;
mod names;
mod numbers;
mod open;
mod print;
mod processes;
mod reach;
mod refused;
mod status;
mod stdio;
mod streams;
mod walks;
mod wide;
mod wide_format;
mod zero_copy;

#[cfg(all(feature = "oracle", target_arch = "x86_64"))]
pub(crate) use self::refused::is_about_bytes;

/// Defines functions of the C library: each returns what `= …` gives, if that is `Some`, and else what the C
/// library's own function of that name does.
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

/// Defines variadic functions, each by one that takes as a list what comes after its first two arguments, or after
/// one or three: as the calling convention has them.
#[cfg(target_arch = "x86_64")]
macro_rules! listed {
    ($($name:ident by $with_list:ident $(after $count:ident)?;)*) => {
        $(listed! { @each $name $with_list $($count)? })*
    };
    (@each $name:ident $with_list:ident one) => { listed! { @with $name $with_list 8, "rsi" } };
    (@each $name:ident $with_list:ident) => { listed! { @with $name $with_list 16, "rdx" } };
    (@each $name:ident $with_list:ident three) => { listed! { @with $name $with_list 24, "rcx" } };
    (@with $name:ident $with_list:ident $taken:literal, $list:literal) => {
        /// Its arguments as a list.
        ///
        /// # Safety
        /// As for `printf(3)` and `scanf(3)`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "sub rsp, 216",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "mov dword ptr [rsp + 8], {taken}",
                "mov dword ptr [rsp + 12], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 16], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 24], rax",
                concat!("lea ", $list, ", [rsp + 8]"),
                "call {with_list}",
                "add rsp, 216",
                "ret",
                taken = const $taken,
                with_list = sym $with_list,
            )
        }
    };
}
#[cfg(target_arch = "x86_64")]
use listed;

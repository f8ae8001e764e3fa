//! Named persist barriers.
//!
//! Every place in the engines that flushes or fences passes a [`Barrier`], a name for that place. Real media ignore it.
//! The simulated medium can be told to make one of them do nothing (a *barrier mutant*); the crash explorer must then
//! find a violation, else the barrier is unneeded or the tests are blind to it.
//!
//! A check in memory can have such a name too, if a crash shows its loss. The engine asks its medium before the check
//! ([`makes_check`](super::Medium::makes_check)).

use std::fmt;

/// The name of one place in the code that flushes or fences.
///
/// ```
/// use untorn::testing::storage::Barrier;
/// const EXAMPLE: Barrier = Barrier::new("example.fence");
/// assert_eq!(EXAMPLE.name(), "example.fence");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Barrier(&'static str);

impl Barrier {
    /// Names a barrier. The convention is `module.operation.what`.
    pub const fn new(name: &'static str) -> Self {
        Barrier(name)
    }

    /// The name given to [`Barrier::new`].
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Declares a module's barriers, each with the reason it exists, and a list `ALL` of them.
///
/// The reason is the constant's documentation: a barrier without one does not compile.
macro_rules! barriers {
    ($($(#[doc = $reason:literal])+ $name:ident = $text:literal;)+) => {
        $(
            $(#[doc = $reason])+
            pub(crate) const $name: $crate::storage::Barrier = $crate::storage::Barrier::new($text);
        )+
        /// Every barrier of this module, for the mutation tests.
        pub(crate) const ALL: &[$crate::storage::Barrier] = &[$($name),+];
    };
}
pub(crate) use barriers;

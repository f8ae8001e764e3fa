//! The rigs on this machine, in small.

mod block;
mod dax;
mod injection;

//! Tests of the file system in a mount: a process of its own serves it, in a mount namespace of the test.

mod atomic;
mod boost;
mod direct;
mod locks;
mod marks;
mod same;
mod streams;
mod stress;
mod support;
mod users;
mod view;

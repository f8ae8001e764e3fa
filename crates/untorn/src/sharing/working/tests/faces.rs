//! One call at a time.

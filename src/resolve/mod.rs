//! From a recording to a profile: names and categories.

//! The recording file: writing, reading, and its text form.

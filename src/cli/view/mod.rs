//! `torchspy view`: a server for one browser on the same machine.
//!
//! It listens on 127.0.0.1 alone. A request needs the random token of this run in its path, so that
//! other users of the machine and other pages of the browser get nothing, and a `Host` that is this
//! machine, so that a name of an attacker's that resolves to 127.0.0.1 (DNS rebinding) gets nothing
//! either. It only reads, and only recordings that lie in its folder.
//!
//! The page of a recording is the file that `convert` writes, unchanged, in a frame. Around it is a
//! small page of the server's own, which loads it again when the recording has grown, or an
//! interval of it in full detail.
//!
//! | file | content |
//! |---|---|
//! | [`library`] | the recordings of a folder, and the profiles that are kept in memory |
//! | [`server`] | requests and answers |
//! | [`html`] | the list of recordings, and the page around a page |

mod html;
pub(super) mod library;
pub(super) mod server;

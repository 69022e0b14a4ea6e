//! The library takes the place of the vendor's by its soname, and has the version that those who
//! link it ask for. As the vendor's, it has no names but those that it exports.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rerun-if-changed=versions.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.13");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--strip-all");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={here}/versions.map");
    // GNU ld refuses a second version script, and rustc gives its own; rustc itself links x86-64
    // with lld.
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|name| name == "aarch64") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
}

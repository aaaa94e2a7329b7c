//! Says that the atomics of `base/atomic.rs` are loom's here.

fn main() {
    println!("cargo::rustc-cfg=fence_loom");
    println!("cargo::rerun-if-changed=build.rs");
}

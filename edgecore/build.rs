//! Has the linker lay together what an idle edge core uses of its program, where it is built to be small: `order.ld`.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=order.ld");
    let (folder, optimised) = (var("CARGO_MANIFEST_DIR"), var("OPT_LEVEL"));
    if let (Ok(folder), Ok("z")) = (folder, optimised.as_deref()) {
        println!("cargo::rustc-link-arg-bin=edgecore=-Wl,-T,{folder}/order.ld");
    }
}

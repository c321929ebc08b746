//! The machines' disk itself: a cut may only take what was not flushed, and has to take some of that.

use tests::machine::{Board, Machine};

const BLOCKS: usize = 64;

#[tokio::test]
async fn a_cut_takes_what_was_not_flushed_and_nothing_else() {
    let machine = Machine::start(Board::Arm64, "drive", &[]);
    // The file system does not flush by itself, however long the writing takes: neither its journal, nor what a new one has
    // put off until it is mounted.
    machine.ok("mount -o remount,commit=3600,noinit_itable /");
    // Each block is one letter: `a` is flushed, `b` reaches the drive and is not.
    let fill = |letter: char, path: &str, flags: &str| {
        format!("yes {letter} | tr -d '\\n' | dd of={path} bs=4096 count={BLOCKS} iflag=fullblock {flags} 2>/dev/null")
    };
    for file in ["/root/flushed", "/root/lost"] {
        machine.ok(&fill('a', file, "conv=fsync"));
    }
    machine.ok("sync");
    machine.ok(&fill('b', "/root/lost", "conv=notrunc oflag=direct"));
    let said = machine.cut(7);
    assert!(
        said["dropped"].as_u64() > Some(0) && said["kept"].as_u64() > Some(0),
        "{said}"
    );
    machine.start_again(false);
    let blocks = |path: &str| machine.ok(&format!("fold -b -w 4096 {path}"));
    let flushed = blocks("/root/flushed");
    assert_eq!(flushed.lines().count(), BLOCKS);
    assert!(
        flushed.lines().all(|block| block.bytes().all(|byte| byte == b'a')),
        "what was flushed is as it was"
    );
    let lost = blocks("/root/lost");
    let all = |letter: u8| {
        lost.lines()
            .filter(|block| block.bytes().all(|byte| byte == letter))
            .count()
    };
    assert_eq!(all(b'a') + all(b'b'), BLOCKS, "a block is written whole or not at all");
    assert!(all(b'a') > 0 && all(b'b') > 0, "some of it was lost, and some was not");
}

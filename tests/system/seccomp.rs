//! Real programs under the default seccomp filter, and how a container's process comes to it. Threads stand for
//! containers' processes: capabilities and filters are of a thread, and what it starts has them too.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::thread;

use edgecore::oci::{Capabilities, Capability, Linux, Process, Sets, Spec};
use edgecore::seccomp::privileges::Entry;
use edgecore::seccomp::{Filter, runtime_default};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, remove_capability_from_bounding_set,
    set_capabilities, set_keep_capabilities, set_no_new_privs,
};

/// What containers hold, as far as these tests need it.
const OWN: [(Capability, CapabilitySet); 3] = [
    (Capability::Chown, CapabilitySet::CHOWN),
    (Capability::NetBindService, CapabilitySet::NET_BIND_SERVICE),
    (Capability::Setuid, CapabilitySet::SETUID),
];

/// Everything a runtime may hand to a container's process here.
const MORE: [(Capability, CapabilitySet); 3] = [
    (Capability::SysAdmin, CapabilitySet::SYS_ADMIN),
    (Capability::Setpcap, CapabilitySet::SETPCAP),
    (Capability::NetAdmin, CapabilitySet::NET_ADMIN),
];

fn bits<'a>(names: impl IntoIterator<Item = &'a Capability>) -> CapabilitySet {
    let known = OWN.into_iter().chain(MORE);
    let known: Vec<_> = known.collect();
    let bit = |name: &Capability| known.iter().find(|(known, _)| known == name).unwrap().1;
    names.into_iter().map(bit).collect()
}

fn spec(held: &[Capability], no_new_privileges: bool) -> Spec {
    let held: Capabilities = held.iter().copied().collect();
    Spec {
        process: Process {
            capabilities: Sets {
                bounding: held.clone(),
                permitted: held.clone(),
                effective: held.clone(),
                ..Sets::default()
            },
            no_new_privileges,
            ..Process::default()
        },
        linux: Linux { seccomp: Some(runtime_default(&held)), ..Linux::default() },
        ..Spec::default()
    }
}

/// Becomes a container's process: user, then capabilities as the specification has them, then what is ours, then a
/// program, which says how it is.
fn status_of_a_program(mut spec: Spec, user: u32) -> BTreeMap<String, String> {
    let entry = Entry::prepare(&mut spec).unwrap();
    let process = spec.process;
    let sets = process.capabilities;
    let thread = thread::spawn(move || {
        if process.no_new_privileges {
            set_no_new_privs(true).unwrap();
        }
        set_keep_capabilities(true).unwrap();
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(user)).unwrap();
        set_keep_capabilities(false).unwrap();
        // The change of user cleared the effective set, which narrowing the bounding set needs.
        let mut held = rustix::thread::capabilities(None).unwrap();
        held.effective = held.permitted;
        set_capabilities(None, held).unwrap();
        let bounding = bits(&sets.bounding);
        for bit in (0..64).map(|at| CapabilitySet::from_bits_retain(1 << at)) {
            // Past the last one that the kernel knows it is an error.
            if !bounding.contains(bit) && capability_is_in_bounding_set(bit).unwrap_or(false) {
                remove_capability_from_bounding_set(bit).unwrap();
            }
        }
        let held = CapabilitySets {
            effective: bits(&sets.effective),
            permitted: bits(&sets.permitted),
            inheritable: CapabilitySet::empty(),
        };
        set_capabilities(None, held).unwrap();
        entry.enter().unwrap();
        let own = rustix::thread::capabilities(None).unwrap();
        let program = Command::new("cat").arg("/proc/self/status").output().unwrap();
        assert!(program.status.success(), "{program:?}");
        (own, String::from_utf8(program.stdout).unwrap())
    });
    let (own, status) = thread.join().unwrap();
    let lines = status.lines().filter_map(|line| line.split_once(":\t"));
    let mut status: BTreeMap<_, _> = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    status.insert("before".to_owned(), format!("{:016x}", own.effective.bits()));
    status
}

#[test]
fn a_container_has_its_filter_and_none_of_what_loading_it_took() {
    let own = OWN.map(|(name, _)| name);
    let with_setpcap = [&own[..], &[Capability::Setpcap]].concat();
    let with_admin = [&own[..], &[Capability::SysAdmin]].concat();
    for held in [&own[..], &[], &with_setpcap, &with_admin] {
        for user in [0, 1000] {
            for no_new_privileges in [false, true] {
                let case = format!("{held:?} as {user}, no new privileges: {no_new_privileges}");
                let status = status_of_a_program(spec(held, no_new_privileges), user);
                let expected = format!("{:016x}", bits(held).bits());
                assert_eq!(status["Seccomp"], "2", "{case}");
                assert_eq!(status["CapBnd"], expected, "{case}");
                assert_eq!(status["before"], expected, "{case}");
                // A program of any other user than root gets none without being given one.
                let after = if user == 0 { expected } else { format!("{:016x}", 0) };
                for set in ["CapPrm", "CapEff"] {
                    assert_eq!(status[set], after, "{set} of {case}");
                }
                for set in ["CapInh", "CapAmb"] {
                    assert_eq!(status[set], format!("{:016x}", 0), "{set} of {case}");
                }
                assert_eq!(status["NoNewPrivs"], u8::from(no_new_privileges).to_string(), "{case}");
            }
        }
    }
}

fn under_the_default_filter(mut command: Command) -> Output {
    let filter = Filter::compile(&runtime_default(&Capabilities::new())).unwrap();
    let thread = thread::spawn(move || {
        filter.load().unwrap();
        command.output().unwrap()
    });
    thread.join().unwrap()
}

#[test]
fn everyday_programs_run_under_the_default_filter() {
    const PYTHON: &str = r#"
import asyncio, mmap, multiprocessing, os, select, signal, socket, sqlite3, subprocess, tempfile, threading, time

async def talk():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\n")
    return await reader.readline()

found = []
thread = threading.Thread(target=lambda: found.append(1))
thread.start()
thread.join()
with multiprocessing.Pool(2) as pool:
    found += pool.map(abs, [-2, -3])
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "file")
    database = sqlite3.connect(path)
    database.execute("create table a (b)")
    database.commit()
    os.chmod(path, 0o600)
    os.utime(path)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        found.append(len(memory) > 0)
found.append(asyncio.run(talk()))
found.append(subprocess.run(["sh", "-c", "echo a | tr a b"], capture_output=True).stdout)
signal.signal(signal.SIGALRM, lambda *_: found.append("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
while "alarm" not in found:
    signal.pause()
try:
    os.unshare(os.CLONE_NEWUTS) if hasattr(os, "unshare") else os.chroot("/")
except PermissionError as error:
    found.append(error.errno)
try:
    socket.socket(socket.AF_VSOCK)
except PermissionError as error:
    found.append(error.errno)
print(found)
"#;
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON]);
    let output = under_the_default_filter(python);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said.trim(), "[1, 2, 3, True, b'hello\\n', b'b\\n', 'alarm', 1, 1]");

    let shell = "set -e; cd $(mktemp -d); seq 1000 > a; cp a b; tar c a b | gzip | gzip -d | tar t | sort -r; \
        find . -name a -exec cmp {} b \\;; ls -la > c; sleep 0.01; df . > d; id -u; stat -c %s a; \
        mount -t tmpfs none /mnt 2>&1 && exit 9; unshare -u true 2>&1 && exit 9; \
        chroot / true 2>&1 && exit 9; echo done";
    let mut sh = Command::new("sh");
    sh.args(["-c", shell]);
    let output = under_the_default_filter(sh);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.ends_with("done\n"), "{output:?}");
    assert!(said.starts_with("b\na\n0\n3893\n"), "{said}");
    assert_eq!(
        said.matches("not permitted").count() + said.matches("ermission denied").count(),
        3,
        "{said}"
    );
}

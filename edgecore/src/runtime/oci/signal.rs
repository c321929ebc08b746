//! Signals by their names.

/// What asks a program to end.
pub(in crate::runtime) const TERM: u32 = 15;
/// The last one that the kernel knows.
const LAST: u32 = 64;
/// The first that is a program's own to use, and the last.
const FIRST_REAL_TIME: u32 = 34;
/// Those that have names of their own.
const NAMES: [(&str, libc::c_int); 31] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("ILL", libc::SIGILL),
    ("TRAP", libc::SIGTRAP),
    ("ABRT", libc::SIGABRT),
    ("BUS", libc::SIGBUS),
    ("FPE", libc::SIGFPE),
    ("KILL", libc::SIGKILL),
    ("USR1", libc::SIGUSR1),
    ("SEGV", libc::SIGSEGV),
    ("USR2", libc::SIGUSR2),
    ("PIPE", libc::SIGPIPE),
    ("ALRM", libc::SIGALRM),
    ("TERM", libc::SIGTERM),
    ("STKFLT", libc::SIGSTKFLT),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("STOP", libc::SIGSTOP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("VTALRM", libc::SIGVTALRM),
    ("PROF", libc::SIGPROF),
    ("WINCH", libc::SIGWINCH),
    ("IO", libc::SIGIO),
    ("PWR", libc::SIGPWR),
    ("SYS", libc::SIGSYS),
];

/// The number of `SIGQUIT`, `quit`, `3`, `SIGRTMIN+3`.
pub(in crate::runtime) fn parse(text: &str) -> Option<u32> {
    if let Ok(number) = text.parse() {
        return Some(number).filter(|number| (1..=LAST).contains(number));
    }
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let real_time = |base: u32, offset: &str, up: bool| -> Option<u32> {
        let offset: u32 = if offset.is_empty() {
            0
        } else {
            offset.get(1..)?.parse().ok()?
        };
        let number = if up {
            base.checked_add(offset)
        } else {
            base.checked_sub(offset)
        };
        number.filter(|number| (FIRST_REAL_TIME..=LAST).contains(number))
    };
    if let Some(offset) = name
        .strip_prefix("RTMIN")
        .filter(|rest| rest.is_empty() || rest.starts_with('+'))
    {
        return real_time(FIRST_REAL_TIME, offset, true);
    }
    if let Some(offset) = name
        .strip_prefix("RTMAX")
        .filter(|rest| rest.is_empty() || rest.starts_with('-'))
    {
        return real_time(LAST, offset, false);
    }
    let (_, number) = NAMES.iter().find(|(known, _)| *known == name)?;
    u32::try_from(*number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_understood_and_nothing_else() {
        for (text, expected) in [
            ("SIGQUIT", Some(3)),
            ("quit", Some(3)),
            ("3", Some(3)),
            ("SIGTERM", Some(15)),
            ("SIGWINCH", Some(28)),
            ("RTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMAX-1", Some(63)),
            ("64", Some(64)),
            ("65", None),
            ("0", None),
            ("-1", None),
            ("SIGRTMIN+31", None),
            ("SIGRTMIN-1", None),
            ("SIGRTMAX+1", None),
            ("SIG", None),
            ("", None),
            ("SIGNOTHING", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}

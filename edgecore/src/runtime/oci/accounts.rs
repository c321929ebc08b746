//! Which user and groups a container runs as, from the manifest, the image and the image's own accounts. Pure.

use crate::runtime::Security;

/// Numbers only: what the kernel wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::runtime) struct Account {
    pub(in crate::runtime) uid: u32,
    pub(in crate::runtime) gid: u32,
    pub(in crate::runtime) groups: Vec<u32>,
    pub(in crate::runtime) home: Option<String>,
}

/// Whether resolving needs the image's `/etc/passwd` and `/etc/group`.
pub(in crate::runtime) fn needs_files(image_user: &str, security: &Security) -> bool {
    match security.user {
        // Root has no groups to look up.
        Some(0) => false,
        Some(_) => true,
        None => !matches!(image_user, "" | "0" | "root" | "0:0" | "root:root"),
    }
}

/// Reads `user`, `user:group`, names or numbers. `Err` is what to tell people.
pub(in crate::runtime) fn resolve(
    image_user: &str,
    security: &Security,
    passwd: &str,
    group: &str,
) -> Result<Account, String> {
    let (user, image_group) = match image_user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (image_user, None),
    };
    // The image's group belongs to the image's user.
    let (user, image_group) = match security.user {
        Some(uid) => (uid.to_string(), None),
        None => (if user.is_empty() { "0" } else { user }.to_owned(), image_group),
    };
    let number = user.parse::<u32>().ok();
    let entry = passwd.lines().filter_map(Entry::parse).find(|entry| match number {
        Some(uid) => entry.id == uid,
        None => entry.name == user,
    });
    let uid = number
        .or_else(|| entry.as_ref().map(|entry| entry.id))
        .or_else(|| (user == "root").then_some(0))
        .ok_or_else(|| format!("the image runs as user {user:?}, which its /etc/passwd does not have"))?;
    let gid = match (security.group, image_group) {
        (Some(gid), _) => gid,
        (None, Some(name)) => gid_of(name, group)?,
        (None, None) => entry.as_ref().map_or(0, |entry| entry.gid),
    };
    if security.run_as_non_root && uid == 0 {
        return Err("it must not run as root, and neither the pod nor the image names another user".into());
    }
    let mut groups = security.groups.clone();
    if let Some(entry) = &entry {
        let member = |line: &str| {
            let mut fields = line.split(':');
            let gid: u32 = fields.nth(2)?.parse().ok()?;
            fields.next()?.split(',').any(|name| name == entry.name).then_some(gid)
        };
        groups.extend(group.lines().filter_map(member));
    }
    groups.sort_unstable();
    groups.dedup();
    Ok(Account { uid, gid, groups, home: entry.map(|entry| entry.home) })
}

fn gid_of(name: &str, group: &str) -> Result<u32, String> {
    if let Ok(gid) = name.parse() {
        return Ok(gid);
    }
    let found = group.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    });
    found
        .or_else(|| (name == "root").then_some(0))
        .ok_or_else(|| format!("the image runs as group {name:?}, which its /etc/group does not have"))
}

/// A line of `/etc/passwd`.
struct Entry {
    name: String,
    id: u32,
    gid: u32,
    home: String,
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let id = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).unwrap_or_default().to_owned();
        Some(Self { name, id, gid, home })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbad line\nweb:x:33:34:Web:/var/www:/bin/sh\nx:x:7:7::/:\n";
    const GROUP: &str = "root:x:0:\nwww:x:34:\naudio:x:29:pulse,web\nvideo:x:44:web\n";

    fn check(user: &str, security: &Security, expected: Result<(u32, u32, &[u32]), &str>) {
        let account = resolve(user, security, PASSWD, GROUP);
        let seen = account
            .as_ref()
            .map(|account| (account.uid, account.gid, account.groups.as_slice()));
        match expected {
            Ok(expected) => assert_eq!(seen, Ok(expected), "{user:?}"),
            Err(part) => assert!(seen.is_err_and(|error| error.contains(part)), "{user:?}: {seen:?}"),
        }
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        let none = Security::default();
        check("", &none, Ok((0, 0, &[])));
        check("root", &none, Ok((0, 0, &[])));
        check("web", &none, Ok((33, 34, &[29, 44])));
        check("33", &none, Ok((33, 34, &[29, 44])));
        check("web:audio", &none, Ok((33, 29, &[29, 44])));
        check("web:0", &none, Ok((33, 0, &[29, 44])));
        check("1234", &none, Ok((1234, 0, &[])));
        check("1234:5", &none, Ok((1234, 5, &[])));
        check("ghost", &none, Err("user \"ghost\""));
        check("web:ghost", &none, Err("group \"ghost\""));
        check("4294967296", &none, Err("4294967296"));
    }

    #[test]
    fn the_pod_overrides_the_image() {
        let security = Security {
            user: Some(7),
            group: Some(99),
            groups: vec![5, 3, 5],
            ..Security::default()
        };
        check("web:audio", &security, Ok((7, 99, &[3, 5])));
        check(
            "web:audio",
            &Security { user: Some(0), ..Security::default() },
            Ok((0, 0, &[])),
        );
        check(
            "web",
            &Security { group: Some(1), ..Security::default() },
            Ok((33, 1, &[29, 44])),
        );
    }

    #[test]
    fn root_is_refused_where_it_must_not_be() {
        let security = Security { run_as_non_root: true, ..Security::default() };
        check("", &security, Err("root"));
        check("root:www", &security, Err("root"));
        check("web", &security, Ok((33, 34, &[29, 44])));
    }

    #[test]
    fn files_are_read_only_when_they_decide_something() {
        for (user, needed) in [
            ("", false),
            ("0:0", false),
            ("root", false),
            ("web", true),
            ("0:www", true),
        ] {
            assert_eq!(needs_files(user, &Security::default()), needed, "{user}");
        }
        assert!(!needs_files("web", &Security { user: Some(0), ..Security::default() }));
        assert!(needs_files("", &Security { user: Some(5), ..Security::default() }));
    }
}

//! Which user and groups a container runs as, from the manifest, the image and the image's own accounts. Pure.

use super::spec::Machine;
use crate::runtime::Security;

/// Numbers only: what the kernel wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::runtime) struct Account {
    pub(in crate::runtime) uid: u32,
    pub(in crate::runtime) gid: u32,
    pub(in crate::runtime) groups: Vec<u32>,
    pub(in crate::runtime) home: Option<String>,
}

impl Account {
    /// The same with the groups that there are here, and those that are not. `Err` is what to tell people.
    pub(in crate::runtime) fn within(mut self, machine: &Machine) -> Result<(Self, Vec<u32>), String> {
        let missing = |what: &str, id: u32, file: &str| {
            format!(
                "it runs as {what} {id}, which is not there for an edge core without root: give its user a range that has it in \
                 {file} (usermod --add-sub{what}s; apt-get install uidmap; edgecore check), or run the edge core as root"
            )
        };
        if !machine.users.contains(self.uid) {
            return Err(missing("uid", self.uid, "/etc/subuid"));
        }
        if !machine.groups.contains(self.gid) {
            return Err(missing("gid", self.gid, "/etc/subgid"));
        }
        let (kept, lost) = self
            .groups
            .into_iter()
            .partition(|group| machine.may_set_groups && machine.groups.contains(*group));
        self.groups = kept;
        Ok((self, lost))
    }
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
        let who = match security.user {
            Some(_) => "and runAsUser is 0",
            None => "and neither the pod nor the image names another user",
        };
        return Err(format!("it must not run as root (runAsNonRoot), {who}"));
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
    use crate::rootless::ids::Ids;

    #[test]
    fn who_is_not_there_is_refused_and_what_groups_are_not_is_left_out() {
        let account = |uid, gid| Account { uid, gid, groups: vec![0, 7], ..Account::default() };
        let alone = Machine { users: Ids::of(1), groups: Ids::of(1), ..Machine::default() };
        let all = Machine {
            users: Ids::of(10),
            groups: Ids::of(10),
            may_set_groups: true,
            ..Machine::default()
        };
        assert_eq!(account(9, 9).within(&all), Ok((account(9, 9), vec![])));
        let (kept, lost) = account(0, 0).within(&alone).unwrap();
        assert_eq!((kept.groups, lost), (vec![], vec![0, 7]));
        let few = Machine { groups: Ids::of(7), ..all.clone() };
        let (kept, lost) = account(0, 0).within(&few).unwrap();
        assert_eq!((kept.groups, lost), (vec![0], vec![7]));
        let said = account(10, 0).within(&all).unwrap_err();
        assert!(
            said.contains("uid 10") && said.contains("/etc/subuid") && said.contains("--add-subuids"),
            "{said}"
        );
        let said = account(0, 10).within(&all).unwrap_err();
        assert!(
            said.contains("gid 10") && said.contains("/etc/subgid") && said.contains("--add-subgids"),
            "{said}"
        );
    }

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

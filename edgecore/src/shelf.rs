//! What `edgecore image list` shows, and what `edgecore image remove` may take. Pure.

use std::fmt::Write as _;

use crate::images::Reference;
use crate::runtime::{Named, explain};

/// As much of an image's digest as tells images apart.
const ID_LENGTH: usize = 12;

/// Why an image is not removed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Kept {
    #[error("{0}")]
    Name(String),
    #[error("there is no image {name}{near}: edgecore image list shows what is here")]
    Unknown { name: String, near: String },
    #[error("{name} is used by {pods}: delete what runs it first, or it would be pulled again")]
    Used { name: String, pods: String },
}

/// The text for people.
pub fn list(images: &[Named]) -> String {
    let width = images.iter().map(|named| named.name.len()).max().unwrap_or(0).max(4);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:<width$} {:<ID_LENGTH$} {:>10} PODS", "NAME", "ID", "SIZE");
    for named in images {
        let (id, size) = match &named.image {
            Some(image) => {
                let id = image.id.rsplit(':').next().unwrap_or_default();
                (id.get(..ID_LENGTH).unwrap_or(id), size(image.size_bytes))
            }
            None => ("incomplete", "-".to_owned()),
        };
        let pods = if named.pods.is_empty() {
            "-".to_owned()
        } else {
            pods(named)
        };
        let _ = writeln!(text, "{:<width$} {id:<ID_LENGTH$} {size:>10} {pods}", named.name);
    }
    text
}

/// The whole names of these images, if all of them may go: none does where one may not.
pub fn removable(images: &[Named], names: &[String]) -> Result<Vec<String>, Kept> {
    let mut whole = Vec::new();
    for name in names {
        let reference = Reference::parse(name).map_err(|error| Kept::Name(explain(&error)))?;
        let meant = reference.to_string();
        let Some(named) = images.iter().find(|named| named.name == meant) else {
            let repository = |name: &str| name.split(['@', ':']).next().map(str::to_owned);
            let near = images
                .iter()
                .find(|named| repository(&named.name) == repository(&meant));
            let near = near.map_or_else(String::new, |named| format!(", but {}", named.name));
            return Err(Kept::Unknown { name: meant, near });
        };
        if !named.pods.is_empty() {
            return Err(Kept::Used { name: meant, pods: pods(named) });
        }
        if !whole.contains(&meant) {
            whole.push(meant);
        }
    }
    Ok(whole)
}

fn pods(named: &Named) -> String {
    named.pods.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        0..0x10_0000 => (1 << 10, "KiB"),
        0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    let tenths = u128::from(bytes) * 10 / unit;
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Image;

    fn named(name: &str, pods: &[&str]) -> Named {
        let image = Image {
            id: format!("sha256:{}", "0123456789abcdef".repeat(4)),
            user: String::new(),
            size_bytes: 3 << 19,
        };
        Named {
            name: name.to_owned(),
            image: Some(image),
            pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
        }
    }

    #[test]
    fn images_are_shown_with_what_uses_them() {
        let mut half = named("docker.io/library/half:1", &[]);
        half.image = None;
        let text = list(&[named("docker.io/library/web:1", &["n/a", "n/b"]), half]);
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["NAME", "ID", "SIZE", "PODS"]);
        assert_eq!(
            words[1],
            ["docker.io/library/web:1", "0123456789ab", "1.5", "MiB", "n/a,", "n/b"]
        );
        assert_eq!(words[2], ["docker.io/library/half:1", "incomplete", "-", "-"]);
        assert_eq!(list(&[]).lines().count(), 1);
    }

    #[test]
    fn what_is_used_or_unknown_stays() {
        let images = [
            named("docker.io/library/web:1", &["n/a", "n/b"]),
            named("reg.test/x:2", &[]),
        ];
        let check = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            removable(&images, &names).map_err(|error| error.to_string())
        };
        let whole = Ok(vec!["reg.test/x:2".to_owned()]);
        assert_eq!(check(&["reg.test/x:2"]), whole);
        assert_eq!(check(&["reg.test/x:2", "reg.test/x:2"]), whole);
        let kept = |names: &[&str], words: &[&str]| {
            let said = check(names).unwrap_err();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        };
        // By its short name as well, and none goes where one has to stay.
        kept(&["web:1"], &["docker.io/library/web:1 is used by n/a, n/b"]);
        kept(&["reg.test/x:2", "web:1"], &["is used by"]);
        kept(
            &["web:2"],
            &[
                "no image docker.io/library/web:2, but docker.io/library/web:1",
                "image list",
            ],
        );
        kept(&["none:1"], &["no image docker.io/library/none:1: edgecore image list"]);
        kept(&["A B"], &["is not an image name"]);
    }

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0.0 KiB"),
            (1 << 20, "1.0 MiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (5 << 29, "2.5 GiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}

//! The rules of names. Each gives what is wrong with a text, in the words of a real server; nothing when it is right.

pub(super) const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
    '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation \
    is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
    alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for \
    validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";

const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
    '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex \
    used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
    'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

const LABEL_BYTES_MAX: usize = 63;
const SUBDOMAIN_BYTES_MAX: usize = 253;

fn too_long(bytes_max: usize) -> String {
    format!("must be no more than {bytes_max} bytes")
}

/// Lower case, digits and dashes, with an alphanumeric character at both ends.
fn is_label_text(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_qualified_text(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    ends(text.bytes().next()) && ends(text.bytes().next_back()) && text.bytes().all(inner)
}

pub(super) fn subdomain(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > SUBDOMAIN_BYTES_MAX {
        wrong.push(too_long(SUBDOMAIN_BYTES_MAX));
    }
    if !text.split('.').all(is_label_text) {
        wrong.push(SUBDOMAIN.to_owned());
    }
    wrong
}

pub(super) fn label(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_BYTES_MAX {
        wrong.push(too_long(LABEL_BYTES_MAX));
    }
    if !is_label_text(text) {
        wrong.push(LABEL.to_owned());
    }
    wrong
}

pub(super) fn label_1035(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_BYTES_MAX {
        wrong.push(too_long(LABEL_BYTES_MAX));
    }
    if !is_label_text(text) || text.starts_with(|first: char| first.is_ascii_digit()) {
        wrong.push(LABEL_1035.to_owned());
    }
    wrong
}

/// A name with an optional subdomain before it: label keys, finalizers, resources.
pub(super) fn qualified(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>().as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                wrong.push("prefix part must be non-empty".to_owned());
            } else {
                wrong.extend(subdomain(prefix).into_iter().map(|one| format!("prefix part {one}")));
            }
            *name
        }
        _ => {
            return vec![format!(
                "a qualified name {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_BYTES_MAX {
        wrong.push(format!("name part {}", too_long(LABEL_BYTES_MAX)));
    }
    if !is_qualified_text(name) {
        wrong.push(format!("name part {QUALIFIED}"));
    }
    wrong
}

pub(super) fn label_value(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > LABEL_BYTES_MAX {
        wrong.push(too_long(LABEL_BYTES_MAX));
    }
    if !text.is_empty() && !is_qualified_text(text) {
        wrong.push(LABEL_VALUE.to_owned());
    }
    wrong
}

pub(super) fn config_key(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > SUBDOMAIN_BYTES_MAX {
        wrong.push(too_long(SUBDOMAIN_BYTES_MAX));
    }
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if text.is_empty() || !text.bytes().all(inner) {
        wrong.push(CONFIG_KEY.to_owned());
    }
    if text == "." {
        wrong.push("must not be '.'".to_owned());
    } else if text == ".." {
        wrong.push("must not be '..'".to_owned());
    } else if text.starts_with("..") {
        wrong.push("must not start with '..'".to_owned());
    }
    wrong
}

pub(super) fn variable(text: &str) -> Vec<String> {
    let printable = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'=';
    if !text.is_empty() && text.bytes().all(printable) {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

pub(super) fn port_name(text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if text.len() > 15 {
        wrong.push("must be no more than 15 bytes".to_owned());
    }
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !text.bytes().all(inner) {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        wrong.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".to_owned());
    }
    wrong
}

pub(super) fn port_number(number: i64) -> Vec<String> {
    if (1..=65535).contains(&number) {
        return Vec::new();
    }
    vec!["must be between 1 and 65535, inclusive".to_owned()]
}

/// Whether a text is a number of per cent.
pub(super) fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

pub(super) const PERCENT: &str = "a valid percent string must be a numeric followed by an ending '%' (e.g. '1%',  or \
    '93%', regex used for validation is '[0-9]+%')";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_their_limits() {
        let right = |wrong: Vec<String>| wrong.is_empty();
        assert!(right(label(&"a".repeat(63))) && !right(label(&"a".repeat(64))));
        assert!(right(label_1035("a-1")) && !right(label_1035("1-a")));
        assert!(!right(label("")) && !right(label("-a")) && !right(label("a_b")) && !right(label("A")));
        let longest = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        assert!(right(subdomain(&longest)) && !right(subdomain(&format!("{longest}d"))));
        assert!(!right(subdomain("a..b")));
        assert!(right(qualified("a.b/C_d")) && !right(qualified("/x")) && !right(qualified("a/b/c")));
        assert!(!right(qualified("a/")) && !right(qualified("A.b/c")));
        assert!(right(label_value("")) && right(label_value(&"v".repeat(63))) && !right(label_value(&"v".repeat(64))));
        assert!(right(config_key("a.B_c-9")) && !right(config_key("")) && !right(config_key("..a")));
        assert!(right(variable("a b.c")) && !right(variable("a=b")) && !right(variable("é")));
        assert!(right(port_name("http-2")) && !right(port_name("22")) && !right(port_name("a--b")));
        assert!(!right(port_name(&"a".repeat(16))) && !right(port_name("-a")));
        assert!(right(port_number(1)) && right(port_number(65535)));
        assert!(!right(port_number(0)) && !right(port_number(65536)));
        assert_eq!(
            (percent("25%"), percent("%"), percent("a%"), percent("5")),
            (Some(25), None, None, None)
        );
    }
}

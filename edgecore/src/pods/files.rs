//! The files every container gets in its `/etc`: who it is, whom it knows, whom it asks for names.

use proto::value::Value;

use super::spec::Pod;

/// The host's own files, as they are now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    pub hostname: String,
    pub hosts: String,
    pub resolv_conf: String,
}

/// A host name may be this long.
const HOSTNAME_LEN_MAX: usize = 63;

/// The name a pod's processes see.
pub fn hostname(pod: &Pod, host: &Host) -> String {
    if pod.host_network {
        return host.hostname.clone();
    }
    let name = match pod.raw.text_at(&["spec", "hostname"]) {
        Some(name) if !name.is_empty() => name,
        _ => &pod.key.name,
    };
    let cut: String = name.chars().take(HOSTNAME_LEN_MAX).collect();
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// `/etc/hosts`: the pod's own addresses, and what `hostAliases` adds. With the host's network it starts as the host's.
pub fn hosts(pod: &Pod, addresses: &[String], host: &Host) -> String {
    let mut text = if pod.host_network {
        let mut text = host.hosts.clone();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text
    } else {
        let mut text = String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
        let name = hostname(pod, host);
        let subdomain = pod
            .raw
            .text_at(&["spec", "subdomain"])
            .filter(|domain| !domain.is_empty());
        for address in addresses {
            let line = match subdomain {
                Some(domain) => {
                    let namespace = &pod.key.namespace;
                    format!("{address}\t{name}.{domain}.{namespace}.svc.cluster.local\t{name}\n")
                }
                None => format!("{address}\t{name}\n"),
            };
            text.push_str(&line);
        }
        text
    };
    for alias in pod.raw.list_at(&["spec", "hostAliases"]) {
        let names = alias.list_at(&["hostnames"]).iter().filter_map(Value::as_text);
        let names: Vec<_> = names.collect();
        let ip = alias.text_at(&["ip"]).unwrap_or_default();
        text.push_str(&format!("{ip}\t{}\n", names.join("\t")));
    }
    text
}

/// `/etc/resolv.conf`: the host's, unless the pod says `None`; then what `dnsConfig` says on top.
pub fn resolv_conf(pod: &Pod, host: &Host) -> String {
    let mut text = match pod.raw.text_at(&["spec", "dnsPolicy"]) {
        Some("None") => String::new(),
        _ => host.resolv_conf.clone(),
    };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let config = |list: &str| pod.raw.list_at(&["spec", "dnsConfig", list]);
    for server in config("nameservers").iter().filter_map(Value::as_text) {
        text.push_str(&format!("nameserver {server}\n"));
    }
    let searches: Vec<_> = config("searches").iter().filter_map(Value::as_text).collect();
    if !searches.is_empty() {
        text.push_str(&format!("search {}\n", searches.join(" ")));
    }
    for option in config("options") {
        let name = option.text_at(&["name"]).unwrap_or_default();
        match option.text_at(&["value"]) {
            Some(value) => text.push_str(&format!("options {name}:{value}\n")),
            None => text.push_str(&format!("options {name}\n")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    fn host() -> Host {
        Host {
            hostname: "pi".into(),
            hosts: "127.0.0.1 localhost".into(),
            resolv_conf: "nameserver 1.1.1.1".into(),
        }
    }

    #[test]
    fn files_of_a_pod() {
        let pod = testing::pod(
            r#"{"hostAliases":[{"ip":"10.0.0.9","hostnames":["plc","plc.site"]}],"subdomain":"s",
                "dnsConfig":{"searches":["site"],"options":[{"name":"ndots","value":"2"}]}}"#,
        );
        assert_eq!(hostname(&pod, &host()), "p");
        let hosts = hosts(&pod, &["10.1.0.2".into()], &host());
        assert!(hosts.contains("10.1.0.2\tp.s.n.svc.cluster.local\tp\n"));
        assert!(hosts.ends_with("10.0.0.9\tplc\tplc.site\n"));
        let resolv = resolv_conf(&pod, &host());
        assert_eq!(resolv, "nameserver 1.1.1.1\nsearch site\noptions ndots:2\n");
    }

    #[test]
    fn files_on_the_hosts_network() {
        let pod = testing::pod(r#"{"hostNetwork":true,"dnsPolicy":"None","dnsConfig":{"nameservers":["9.9.9.9"]}}"#);
        assert_eq!(hostname(&pod, &host()), "pi");
        assert_eq!(hosts(&pod, &[], &host()), "127.0.0.1 localhost\n");
        assert_eq!(resolv_conf(&pod, &host()), "nameserver 9.9.9.9\n");
        let long = testing::pod(&format!(r#"{{"hostname":"{}-x"}}"#, "a".repeat(62)));
        assert_eq!(hostname(&long, &host()), "a".repeat(62));
    }
}

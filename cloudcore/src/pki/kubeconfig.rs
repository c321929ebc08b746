//! The kubeconfig of the first admin, which `cloudcore serve` writes: real kubectl works with it as it is.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::value::Value;
use proto::value::json;

/// The kubeconfig as text. It is JSON, which every YAML reader reads, and holds a private key: mode 0600.
pub(super) fn text(server: &str, bundle_pem: &str, certificate_pem: &str, key_pem: &str) -> String {
    const NAME: &str = "edgehold";
    let data = |pem: &str| Value::from(STANDARD.encode(pem));
    let named = |field: &str, content: Value| Value::List(vec![[("name", Value::from(NAME)), (field, content)].into()]);
    let cluster = [
        ("certificate-authority-data", data(bundle_pem)),
        ("server", Value::from(server)),
    ];
    let user = [
        ("client-certificate-data", data(certificate_pem)),
        ("client-key-data", data(key_pem)),
    ];
    let context = [("cluster", NAME), ("user", NAME)];
    let config = Value::from([
        ("apiVersion", Value::from("v1")),
        ("kind", "Config".into()),
        ("clusters", named("cluster", cluster.into())),
        ("users", named("user", user.into())),
        ("contexts", named("context", context.into())),
        ("current-context", NAME.into()),
    ]);
    json::write(&config) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_finds_what_it_looks_for() {
        let config = json::parse(text("https://h:1", "ca", "cert", "key").as_bytes()).unwrap();
        let check = |path: &[&str], text: &str| assert_eq!(config.text_at(path), Some(text), "{path:?}");
        check(&["clusters", "0", "name"], "edgehold");
        check(&["clusters", "0", "cluster", "server"], "https://h:1");
        check(&["clusters", "0", "cluster", "certificate-authority-data"], "Y2E=");
        check(&["users", "0", "user", "client-certificate-data"], "Y2VydA==");
        check(&["users", "0", "user", "client-key-data"], "a2V5");
        check(&["contexts", "0", "context", "cluster"], "edgehold");
        check(&["contexts", "0", "context", "user"], "edgehold");
        check(&["current-context"], "edgehold");
    }
}

//! The rules of nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proto::object::quantity::Quantity;
use proto::value::{Value, json};

use super::{Faults, list, names, text};

/// What a taint can do.
pub(super) const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn body(object: &Value, faults: &mut Faults) {
    if let Some(spec) = object.get("spec") {
        taints(spec, faults);
        cidrs(spec, faults);
    }
    for part in ["capacity", "allocatable"] {
        let amounts = object.at(&["status", part]).and_then(Value::as_map);
        for (name, amount) in amounts.into_iter().flatten() {
            let quantity = amount.as_text().and_then(|text| text.parse::<Quantity>().ok());
            if quantity.is_some_and(Quantity::is_negative) {
                let words = "must be greater than or equal to 0";
                faults.invalid(format_args!("status.{part}.{name}"), amount, words);
            }
        }
    }
}

pub(super) fn update(old: &Value, new: &Value, faults: &mut Faults) {
    let nothing = Value::map();
    let (before, after) = (old.get("spec").unwrap_or(&nothing), new.get("spec").unwrap_or(&nothing));
    if !list(before, "podCIDRs").is_empty() && before.get("podCIDRs") != after.get("podCIDRs") {
        let words = "node updates may not change podCIDR except from \"\" to valid";
        faults.forbidden("spec.podCIDRs", words);
    }
    // Both the node's own check and that of its update look at these.
    taints(after, faults);
    let provider = text(before, "providerID");
    if !provider.is_empty() && provider != text(after, "providerID") {
        faults.forbidden(
            "spec.providerID",
            "node updates may not change providerID except from \"\" to valid",
        );
    }
}

fn taints(spec: &Value, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (at, taint) in list(spec, "taints").iter().enumerate() {
        let field = format!("metadata.taints[{at}]");
        let (key, value, effect) = (text(taint, "key"), text(taint, "value"), text(taint, "effect"));
        faults.invalid_texts(format_args!("{field}.key"), key, names::qualified(key));
        faults.invalid_texts(format_args!("{field}.value"), value, names::label_value(value));
        faults.one_of(format_args!("{field}.effect"), effect, &EFFECTS);
        if !seen.insert((key, effect)) {
            let quoted = |text: &str| json::write(&Value::from(text));
            let added = taint.get("timeAdded").map_or_else(|| "null".to_owned(), json::write);
            let message = format!(
                "Duplicate value: {{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{added}}}: taints must be \
                 unique by key and effect pair",
                quoted(key),
                quoted(value),
                quoted(effect)
            );
            faults.add(super::Fault::Duplicate, field, message);
        }
    }
}

fn cidrs(spec: &Value, faults: &mut Faults) {
    let cidrs = list(spec, "podCIDRs");
    let mut families = BTreeSet::new();
    let mut doubled = false;
    for (at, cidr) in cidrs.iter().enumerate() {
        match family(cidr.as_text().unwrap_or_default()) {
            Some(family) => doubled |= !families.insert(family),
            None => faults.invalid(
                format_args!("spec.podCIDRs[{at}]"),
                cidr,
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ),
        }
    }
    if doubled {
        let value = Value::List(cidrs.to_vec());
        faults.invalid(
            "spec.podCIDRs",
            &value,
            "may specify no more than one CIDR for each IP family",
        );
    }
}

/// Whether a network is of IPv6; `None` when it is no network.
fn family(text: &str) -> Option<bool> {
    let (address, bits) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    let most = if address.is_ipv6() { 128 } else { 32 };
    (bits <= most).then(|| address.is_ipv6())
}

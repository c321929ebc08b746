//! Randomness from the operating system.

use proto::object::Uid;
use ring::rand::{SecureRandom as _, SystemRandom};

/// Bytes fit for keys and nonces.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("every kernel this runs on has a random source that does not fail once it is seeded");
    bytes
}

/// A new identity.
pub fn uid() -> Uid {
    Uid::random(bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_twice() {
        assert_ne!(bytes::<16>(), bytes::<16>());
        let (one, other) = (uid(), uid());
        assert_ne!(one, other);
        assert_eq!(one.to_string().parse(), Ok(one));
    }
}

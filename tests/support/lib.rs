//! What the tests share: builders, fakes and ways to wait for a condition.

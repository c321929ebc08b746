"""What `images/build` and `images/deb` share: where programs come from, which source they were built from, and bytes
that depend on nothing but what is in them."""

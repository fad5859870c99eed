//! HMAC-SHA256 (RFC 2104), so that a receiver can tell that a notice comes from this server.

use sha2::{Digest, Sha256};

const BLOCK: usize = 64;

/// `sha256=` and the HMAC of a body under a secret, in hexadecimal.
pub fn sign(secret: &[u8], body: &[u8]) -> String {
    let mut key = [0u8; BLOCK];
    if secret.len() > BLOCK {
        key[..32].copy_from_slice(&Sha256::digest(secret));
    } else {
        key[..secret.len()].copy_from_slice(secret);
    }
    let inner = Sha256::new().chain_update(key.map(|b| b ^ 0x36)).chain_update(body).finalize();
    let outer = Sha256::new().chain_update(key.map(|b| b ^ 0x5c)).chain_update(inner).finalize();
    outer.iter().fold("sha256=".to_string(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_vectors_of_rfc_4231() {
        assert_eq!(
            sign(b"Jefe", b"what do ya want for nothing?"),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            sign(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First"),
            "sha256=60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }
}

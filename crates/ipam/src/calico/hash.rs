// SPDX-License-Identifier: Apache-2.0
//! The label by which Calico finds the affinities of a node: SHA3-256 of the node name in base32.
//!
//! A node name may be longer than a label, so Calico hashes it (`hashHostnameForLabel` in
//! libcalico-go/lib/backend/model/block_affinity.go).

/// Bytes of the state that SHA3-256 combines with input in one round (FIPS 202).
const RATE: usize = 136;

/// Returns the value of the label `projectcalico.org/hostname-hash` for a node.
pub fn hostname_label(node: &str) -> String {
    base32(&sha3_256(node.as_bytes()))
}

fn base32(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut text = String::new();
    for chunk in bytes.chunks(5) {
        let mut block = [0; 8];
        block[3..3 + chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(block);
        for i in 0..(chunk.len() * 8).div_ceil(5) {
            text.push(char::from(DIGITS[(bits >> (35 - 5 * i) & 31) as usize]));
        }
    }
    text
}

fn sha3_256(input: &[u8]) -> [u8; 32] {
    let mut padded = input.to_vec();
    padded.push(0x06);
    padded.resize(padded.len().next_multiple_of(RATE), 0);
    if let Some(last) = padded.last_mut() {
        *last |= 0x80;
    }
    let mut state = [0_u64; 25];
    for block in padded.chunks_exact(RATE) {
        for (lane, bytes) in state.iter_mut().zip(block.chunks_exact(8)) {
            *lane ^= u64::from_le_bytes(bytes.try_into().expect("a chunk has eight bytes"));
        }
        keccak_f(&mut state);
    }
    let mut digest = [0; 32];
    for (bytes, lane) in digest.chunks_exact_mut(8).zip(state) {
        bytes.copy_from_slice(&lane.to_le_bytes());
    }
    digest
}

/// The permutation Keccak-f with 1600 bits. Lane (x, y) is at index x + 5y.
fn keccak_f(state: &mut [u64; 25]) {
    let mut register = 1_u8;
    for _ in 0..24 {
        let column: [u64; 5] =
            std::array::from_fn(|x| (0..5).fold(0, |sum, y| sum ^ state[x + 5 * y]));
        for x in 0..5 {
            let change = column[(x + 4) % 5] ^ column[(x + 1) % 5].rotate_left(1);
            for y in 0..5 {
                state[x + 5 * y] ^= change;
            }
        }
        let (mut x, mut y, mut current) = (1, 0, state[1]);
        for t in 0..24_u32 {
            (x, y) = (y, (2 * x + 3 * y) % 5);
            let next = state[x + 5 * y];
            state[x + 5 * y] = current.rotate_left((t + 1) * (t + 2) / 2 % 64);
            current = next;
        }
        for row in state.chunks_exact_mut(5) {
            let old: [u64; 5] = std::array::from_fn(|x| row[x]);
            for x in 0..5 {
                row[x] = old[x] ^ (!old[(x + 1) % 5] & old[(x + 2) % 5]);
            }
        }
        state[0] ^= round_constant(&mut register);
    }
}

/// Returns the constant of the next round. The bits come from a linear feedback shift register.
fn round_constant(register: &mut u8) -> u64 {
    let mut constant = 0;
    for j in 0..7 {
        if *register & 1 == 1 {
            constant |= 1 << ((1 << j) - 1);
        }
        let overflow = *register >> 7;
        *register = (*register << 1) ^ (overflow * 0x71);
    }
    constant
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digest_is_that_of_fips_202() {
        assert_eq!(
            hex(&sha3_256(b"")),
            "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"
        );
        assert_eq!(
            hex(&sha3_256(b"abc")),
            "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"
        );
        // 200 bytes of 0xa3 need two rounds.
        assert_eq!(
            hex(&sha3_256(&[0xa3; 200])),
            "79f38adec5c20307a98ef76e8324afbfd46cfd81b22e3973c65fa1bd9de31787"
        );
    }

    #[test]
    fn label_is_that_of_calico() {
        // libcalico-go/lib/backend/model/block_affinity_hash_internal_test.go
        assert_eq!(
            hostname_label("node-a"),
            "PY3TQE2E3XMTETLM2MJO3UITKPFB27YUJ4T4E5XGPEJON3SM4QAA"
        );
    }
}

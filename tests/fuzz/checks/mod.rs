//! What must hold for any input, whoever made it: one check a file, each a function of bytes that panics where
//! something doesn't hold. `tests/fuzz.rs` runs them on the seeds and on some mutations of them, `.ci/fuzz` runs them
//! under libFuzzer for as long as one likes. They use the crate's public face alone.

pub mod codec_request;
pub mod codec_response;
pub mod config;
pub mod opening;
pub mod paths;
pub mod resp;
pub mod tokens;

mod body;
mod plain;

/// Numbers that hang on the input alone, so that an input always does the same.
pub struct Draw(u64);

impl Draw {
    /// FNV-1a over the input.
    pub fn of(data: &[u8]) -> Draw {
        let hash = data.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Draw(hash | 1)
    }

    /// The next number below `end`, which is more than 0.
    pub fn below(&mut self, end: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Bytes as a failure shows them.
fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

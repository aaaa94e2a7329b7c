//! Dice with a seed, for random scenarios.

/// A small generator: runs with one seed make the same choices in each holder.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        // Seeds that stand side by side must not begin alike.
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..4 {
            dice.next();
        }
        dice
    }

    pub fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    pub fn millis(&mut self, below: u64) -> std::time::Duration {
        std::time::Duration::from_millis(self.below(below))
    }
}

/// The seed of this run, which is printed: `FENCEGATE_SEED` picks it.
pub fn seed() -> u64 {
    let seed = std::env::var("FENCEGATE_SEED").map_or(1, |seed| seed.parse().unwrap());
    eprintln!("FENCEGATE_SEED={seed}");
    seed
}

/// How many rounds a scenario has: `FENCEGATE_ROUNDS`, or so many, and more in a long run.
pub fn rounds(short: u64, long: u64) -> u64 {
    match std::env::var("FENCEGATE_ROUNDS") {
        Ok(rounds) => rounds.parse().unwrap(),
        Err(_) if super::is_long_run() => long,
        Err(_) => short,
    }
}

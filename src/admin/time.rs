//! Moments for people: RFC 3339 in UTC, to the millisecond. It decides nothing.

/// Milliseconds since 1970 as `2026-11-29T19:47:22.123Z`. The calendar is counted in 400-year cycles of 146,097
/// days, with years that begin in March, so that the leap day is a year's last.
pub(crate) fn rfc3339(ms: u64) -> String {
    let (seconds, millis) = (ms / 1000, ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// The date of a day, counted from 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Day 0 of the count below is 0000-03-01.
    let day = days + 719_468;
    let (cycle, day) = (day / 146_097, day % 146_097);
    // Every 4th year has one day more, every 100th not, the 400th does.
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    // Months from March on: 31 30 31 30 31, twice, then 31 and February: 153 days for each five.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 {
        (year, month + 3)
    } else {
        (year + 1, month - 9)
    };
    (cycle * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::{date, rfc3339};

    #[test]
    fn moments_are_written_as_the_calendar_has_them() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_709_164_799_999), "2024-02-28T23:59:59.999Z");
        assert_eq!(rfc3339(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn every_day_of_400_years_follows_the_one_before() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..146_097 {
            assert_eq!(date(days), (year, month, day), "day {days}");
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 if leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }
}

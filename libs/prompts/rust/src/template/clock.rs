//! `strftime_now`: the local time in the formats that templates use.

use super::refused::{Refused, Result};
use super::value::write_to;

/// A local date and time.
#[derive(Clone, Copy, Debug)]
pub struct LocalTime {
    /// For instance 2026.
    pub year: i32,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 60.
    pub second: u8,
    /// Days since Sunday, 0 to 6.
    pub weekday: u8,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl LocalTime {
    /// Python's `strftime` in the C locale, which the interpreter has unless a program changes it.
    pub fn format(&self, format: &str) -> Result<String> {
        let odd = Refused::Unlike("strftime");
        let month = *MONTHS
            .get(usize::from(self.month).wrapping_sub(1))
            .ok_or(odd)?;
        let weekday = *WEEKDAYS.get(usize::from(self.weekday)).ok_or(odd)?;
        if !(1000..=9999).contains(&self.year) {
            return Err(odd);
        }
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(char) = chars.next() {
            if char != '%' {
                out.push(char);
                continue;
            }
            let two = match chars.next().ok_or(odd)? {
                'Y' => {
                    write_to(&mut out, format_args!("{}", self.year));
                    continue;
                }
                'B' => {
                    out.push_str(month);
                    continue;
                }
                'b' => {
                    out.push_str(&month[..3]);
                    continue;
                }
                'A' => {
                    out.push_str(weekday);
                    continue;
                }
                'a' => {
                    out.push_str(&weekday[..3]);
                    continue;
                }
                'y' => u8::try_from(self.year % 100).map_err(|_| odd)?,
                'm' => self.month,
                'd' => self.day,
                'H' => self.hour,
                'M' => self.minute,
                'S' => self.second,
                _ => return Err(odd),
            };
            write_to(&mut out, format_args!("{two:02}"));
        }
        Ok(out)
    }
}

//! Messages without secrets.

/// The start of the name of a variable that configures a store.
const OURS: [&str; 4] = ["AWS_", "AZURE_", "GOOGLE_", "NATS_"];

/// The end of the name of a variable that has a secret.
const SECRET: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS", "SIGNATURE"];

/// Takes out the values of variables that have secrets, and what would disturb a terminal. Answers of servers are not
/// expected to repeat secrets; if one does, it is not passed on.
pub(super) fn scrub(text: &str) -> String {
    let secrets = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?;
        let is_ours = OURS.iter().any(|start| name.starts_with(start));
        let is_secret = is_ours && SECRET.iter().any(|end| name.ends_with(end));
        value.into_string().ok().filter(|value| is_secret && value.len() >= 8)
    });
    without(text, secrets)
}

fn without(text: &str, secrets: impl Iterator<Item = String>) -> String {
    let text = secrets.fold(text.to_owned(), |text, secret| text.replace(&secret, "…"));
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_control_characters_are_taken_out() {
        let secrets = ["hidden-secret".to_owned()].into_iter();
        assert_eq!(without("a hidden-secret\u{1b}[2J b", secrets), "a … [2J b");
        assert_eq!(without(&"x".repeat(9999), std::iter::empty()).len(), 500);
    }
}

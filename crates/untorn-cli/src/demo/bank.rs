//! The demo's workload: a bank whose transfers must be atomic.
//!
//! The file holds a page with the number of the last transfer, one account in each of many pages, and a receipt longer
//! than a page. A transfer debits one account, writes a new receipt, credits another account and increments the number.
//! Between two of these stores, the file shows missing money or a receipt mixed from two transfers.

use crate::rng::Rng;

/// Distance between accounts: each has its own page.
const PAGE: u64 = 4096;
/// The initial balance of each account.
const OPENING_BALANCE: u64 = 1000;
/// Bytes of one entry of the receipt.
const ENTRY: usize = 64;

/// The size of a bank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bank {
    /// How many accounts.
    pub(crate) accounts: u64,
    /// Bytes of the receipt, a multiple of 64.
    pub(crate) receipt: u64,
}

/// One transfer: writes to four places that must become visible together.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    /// Its number, from 1.
    pub(crate) number: u64,
    from: u64,
    to: u64,
    amount: u64,
}

/// The state of the file after a crash.
#[derive(Clone, Debug)]
pub(crate) struct Audit {
    /// The number of the last transfer, read from the file.
    pub(crate) number: u64,
    /// A description of the tear, if the state is a mixture.
    pub(crate) torn: Option<String>,
}

/// Eight bytes of a file as a number; zero past the end of the file.
fn word(bytes: &[u8], offset: u64) -> u64 {
    let offset = offset as usize;
    bytes.get(offset..offset + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Bank {
    /// The bank for the kills. Its receipt is so long that most kills hit the middle of it.
    pub(crate) const LARGE: Bank = Bank { accounts: 128, receipt: 128 << 10 };

    /// Length of the file.
    pub(crate) fn len(self) -> u64 {
        PAGE + self.accounts * PAGE + self.receipt
    }

    /// Offset of the number of the last transfer.
    pub(crate) const NUMBER: u64 = 0;

    /// Offset of an account's balance. As in a real record, it is not at the start of its page.
    pub(crate) fn account(self, account: u64) -> u64 {
        PAGE + account * PAGE + 24 + account % 500 * 8
    }

    /// Offset of the receipt.
    pub(crate) fn receipt_at(self) -> u64 {
        PAGE + self.accounts * PAGE
    }

    /// The file's initial bytes.
    pub(crate) fn opening(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len() as usize];
        for account in 0..self.accounts {
            let at = self.account(account) as usize;
            bytes[at..at + 8].copy_from_slice(&OPENING_BALANCE.to_le_bytes());
        }
        let at = self.receipt_at() as usize;
        for (index, entry) in bytes[at..].chunks_exact_mut(ENTRY).enumerate() {
            entry.copy_from_slice(&receipt_entry(0, index as u64));
        }
        bytes
    }

    /// The next transfer, given these balances.
    pub(crate) fn transfer(self, number: u64, balances: &[u64], rng: &mut Rng) -> Transfer {
        let from = (0..).map(|_| rng.below(self.accounts)).find(|&account| balances[account as usize] > 0);
        let from = from.unwrap_or(0);
        let to = (from + rng.between(1, self.accounts - 1)) % self.accounts;
        let amount = rng.between(1, balances[from as usize]);
        Transfer { number, from, to, amount }
    }

    /// All balances.
    pub(crate) fn balances(self, bytes: &[u8]) -> Vec<u64> {
        (0..self.accounts).map(|account| word(bytes, self.account(account))).collect()
    }

    /// Checks what must hold after every transfer.
    pub(crate) fn audit(self, bytes: &[u8]) -> Audit {
        let number = word(bytes, Self::NUMBER);
        let total: u128 = self.balances(bytes).into_iter().map(u128::from).sum();
        let expected = u128::from(self.accounts * OPENING_BALANCE);
        let mut wrong = Vec::new();
        if total < expected {
            wrong.push(format!("{} of {expected} coins are missing", expected - total));
        }
        if total > expected {
            wrong.push(format!("{} coins too many", total - expected));
        }
        let receipt = bytes.get(self.receipt_at() as usize..).unwrap_or_default();
        let other = receipt
            .chunks_exact(ENTRY)
            .enumerate()
            .filter(|(index, entry)| **entry != receipt_entry(number, *index as u64));
        let other = other.count();
        if other > 0 || receipt.len() as u64 != self.receipt {
            let entries = self.receipt as usize / ENTRY;
            wrong.push(format!("{other} of {entries} receipt lines do not belong to transfer {number}"));
        }
        Audit { number, torn: (!wrong.is_empty()).then(|| wrong.join(", ")) }
    }
}

/// A line of a transfer's receipt: the transfer's number, and bytes unique to this line.
fn receipt_entry(number: u64, index: u64) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..8].copy_from_slice(&number.to_le_bytes());
    Rng::from_parts(&[number, index]).fill(&mut entry[8..]);
    entry
}

impl Transfer {
    /// Applies it to the balances in memory.
    pub(crate) fn apply(&self, balances: &mut [u64]) {
        balances[self.from as usize] -= self.amount;
        balances[self.to as usize] += self.amount;
    }

    /// Calls `store` for each of its stores, in a plain program's order. `balances` are those after the transfer.
    pub(crate) fn stores<E>(
        &self,
        bank: Bank,
        balances: &[u64],
        mut store: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        store(bank.account(self.from), &balances[self.from as usize].to_le_bytes())?;
        for index in 0..bank.receipt / ENTRY as u64 {
            store(bank.receipt_at() + index * ENTRY as u64, &receipt_entry(self.number, index))?;
        }
        store(bank.account(self.to), &balances[self.to as usize].to_le_bytes())?;
        store(Bank::NUMBER, &self.number.to_le_bytes())
    }

    /// The number of those stores.
    #[cfg(test)]
    fn store_count(bank: Bank) -> u64 {
        3 + bank.receipt / ENTRY as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Bank = Bank { accounts: 4, receipt: 256 };

    /// The file after one whole transfer and the first `stores` stores of a second one.
    fn cut_short(stores: u64) -> Vec<u8> {
        let mut bytes = SMALL.opening();
        let mut balances = SMALL.balances(&bytes);
        let mut rng = Rng::new(7);
        for number in 1..=2 {
            let transfer = SMALL.transfer(number, &balances, &mut rng);
            transfer.apply(&mut balances);
            let mut left = if number == 1 { u64::MAX } else { stores };
            let _cut: Result<(), ()> = transfer.stores(SMALL, &balances, |offset, data| {
                left = left.checked_sub(1).ok_or(())?;
                let offset = offset as usize;
                bytes[offset..offset + data.len()].copy_from_slice(data);
                Ok(())
            });
        }
        bytes
    }

    #[test]
    fn a_new_bank_and_whole_transfers_pass_the_audit() {
        assert!(SMALL.audit(&SMALL.opening()).torn.is_none());
        let whole = SMALL.audit(&cut_short(u64::MAX));
        assert_eq!((whole.number, whole.torn), (2, None));
        assert!(SMALL.audit(&cut_short(0)).torn.is_none());
    }

    #[test]
    fn a_transfer_cut_short_anywhere_fails_it() {
        for stores in 1..Transfer::store_count(SMALL) {
            assert!(SMALL.audit(&cut_short(stores)).torn.is_some(), "a cut after {stores} stores was not noticed");
        }
    }

    #[test]
    fn a_file_of_another_length_fails_it() {
        assert!(SMALL.audit(&[]).torn.is_some());
        assert!(SMALL.audit(&SMALL.opening()[..SMALL.len() as usize - 64]).torn.is_some());
    }
}

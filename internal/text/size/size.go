// Package size reads sizes as people and ls write them.
package size

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// Most is the largest size: 1 EiB.
const Most = 1 << 60

// Parse reads a size in bytes, from 1 to [Most]: a number, whole or with a fraction, and a unit. Units are those of GNU
// coreutils: K, M, G, T, P and KiB to PiB are powers of 1024, kB (or KB) to PB are powers of 1000, B and none are bytes.
// Capitals do not matter, and a space may stand before the unit.
func Parse(text string) (int64, error) {
	trimmed := strings.TrimSpace(text)
	digits := strings.LastIndexAny(trimmed, "0123456789.") + 1
	number, ok := new(big.Rat).SetString(trimmed[:digits])
	if !ok || strings.Trim(trimmed[:digits], "0123456789.") != "" {
		return 0, fmt.Errorf("%q is no size: write it as 64MiB, 10G, 1.5TB or a number of bytes", text)
	}
	base, power := int64(1), int64(0)
	if name := strings.ToLower(strings.TrimSpace(trimmed[digits:])); name != "" && name != "b" {
		power = int64(strings.IndexByte("kmgtp", name[0]) + 1)
		switch {
		case power > 0 && (name[1:] == "" || name[1:] == "ib"):
			base = 1024
		case power > 0 && name[1:] == "b":
			base = 1000
		default:
			return 0, fmt.Errorf("%q is no size, its unit is unknown: write it as 64MiB, 10G, 1.5TB or a number of bytes", text)
		}
	}
	unit := new(big.Int).Exp(big.NewInt(base), big.NewInt(power), nil)
	number.Mul(number, new(big.Rat).SetInt(unit))
	whole := new(big.Int).Quo(number.Num(), number.Denom())
	if whole.Cmp(big.NewInt(1)) < 0 || whole.Cmp(big.NewInt(Most)) > 0 {
		return 0, fmt.Errorf("%q is not from 1 byte to 1 EiB", text)
	}
	return whole.Int64(), nil
}

// Flag is a size on a command line; 0 where none was given.
type Flag int64

// Set implements pflag.Value.
func (f *Flag) Set(text string) error {
	n, err := Parse(text)
	*f = Flag(n)
	return err
}

// String gives the size as it is written, empty for none.
func (f *Flag) String() string {
	if *f == 0 {
		return ""
	}
	return Binary(int64(*f))
}

// Type implements pflag.Value.
func (*Flag) Type() string { return "size" }

// Amount is a number of bytes on a command line that may be 0, and below it where a flag gives that a meaning.
type Amount int64

// Set implements pflag.Value.
func (a *Amount) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		n, err = Parse(text)
	}
	*a = Amount(n)
	return err
}

// String gives the size as it is written.
func (a *Amount) String() string { return Binary(int64(*a)) }

// Type implements pflag.Value.
func (*Amount) Type() string { return "size" }

// Rate is bytes per second on a command line, such as 500MB/s or 64MiB; 0 where none was given.
type Rate int64

// Set implements pflag.Value.
func (r *Rate) Set(text string) error {
	n, err := Parse(strings.TrimSuffix(text, "/s"))
	if err != nil {
		return fmt.Errorf("%q is no rate: write it as 500MB/s, 64MiB/s or a number of bytes", text)
	}
	*r = Rate(n)
	return nil
}

// String gives the rate as it is written, empty for none.
func (r *Rate) String() string {
	if *r == 0 {
		return ""
	}
	return Binary(int64(*r)) + "/s"
}

// Type implements pflag.Value.
func (*Rate) Type() string { return "rate" }

// Count is a number of things on a command line: 2048, 64k, 1.5M, 100B. Units are powers of 1000, and B is a billion, as of tokens.
type Count int64

// Set implements pflag.Value.
func (c *Count) Set(text string) error {
	digits := strings.TrimRight(text, "kKmMgGbBtT")
	number, ok := new(big.Rat).SetString(digits)
	power := strings.Index("kmgt", strings.ReplaceAll(strings.ToLower(text[len(digits):]), "b", "g")) + 1
	if !ok || strings.Trim(digits, "0123456789.") != "" || len(text)-len(digits) > 1 {
		return fmt.Errorf("%q is no number such as 2048, 64k, 100M, 1.5G or 1T", text)
	}
	if len(text) == len(digits) {
		power = 0
	}
	number.Mul(number, new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(1000), big.NewInt(int64(power)), nil)))
	if !number.IsInt() || !number.Num().IsInt64() {
		return fmt.Errorf("%q is no whole number, or one that is too large", text)
	}
	*c = Count(number.Num().Int64())
	return nil
}

// String gives the number, empty for none.
func (c *Count) String() string {
	if *c == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*c), 10)
}

// Type implements pflag.Value.
func (*Count) Type() string { return "count" }

// Binary writes a number of bytes exactly, in the largest power of 1024 that divides it: "64MiB", "1000".
func Binary(n int64) string {
	units := []string{"", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(units)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatInt(n, 10) + units[i]
}

// Grouped writes a count with commas, and one that is not known as a dash.
func Grouped(n int64) string {
	if n < 0 {
		return "-"
	}
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// Decimal writes bytes in decimal units, as disks are sold and rates are quoted.
func Decimal(n int64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, units := float64(n)/unit, "kMGTPE"
	i := 0
	for ; value >= unit && i < len(units)-1; i++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %cB", value, units[i])
}

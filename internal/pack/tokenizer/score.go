package tokenizer

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// parseScore reads a number as serde_json does without float_roundtrip, by which the tokenizers package reads scores.
// It reads the digits as one integer, then does one multiplication or division. The result may be one bit off the
// nearest number, and where two ways have nearly the same score that bit decides.
func parseScore(s string) (float64, error) {
	wrong := errors.New("it is not a number")
	digits, exponent := s, int64(0)
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.ParseInt(strings.TrimPrefix(s[i+1:], "+"), 10, 32); err != nil {
			return 0, wrong
		}
		digits = s[:i]
	}
	digits, negative := strings.CutPrefix(digits, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	if whole == "" {
		return 0, wrong
	}
	var significand uint64
	full := false // further digits are left out
	for i, c := range []byte(whole + fraction) {
		if c < '0' || c > '9' {
			return 0, wrong
		}
		inFraction := i >= len(whole)
		d := uint64(c - '0')
		if full || significand > math.MaxUint64/10 || significand == math.MaxUint64/10 && d > math.MaxUint64%10 {
			full = true
			if !inFraction {
				exponent++
			}
			continue
		}
		significand = significand*10 + d
		if inFraction {
			exponent--
		}
	}
	f := float64(significand)
	for exponent < -308 && f != 0 {
		f /= 1e308
		exponent += 308
	}
	switch {
	case f == 0:
	case exponent < 0:
		f /= math.Pow10(int(-exponent))
	default:
		f *= math.Pow10(int(min(exponent, 400)))
	}
	if math.IsInf(f, 0) {
		return 0, errors.New("it is too large")
	}
	if negative {
		f = -f
	}
	return f, nil
}

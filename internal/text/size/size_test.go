package size

import (
	"math"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "512": 512, "64B": 64, "64 b": 64, "8KiB": 8 << 10, "8K": 8 << 10, "8k": 8 << 10, "8kB": 8000, "8KB": 8000,
		"10G": 10 << 30, "10GB": 10e9, "10GiB": 10 << 30, "10g": 10 << 30, "10 GB": 10e9, "1.5TiB": 3 << 39, "1.5TB": 1.5e12, "1T": 1 << 40,
		"1.5M": 3 << 19, "1152921504606846975": 1<<60 - 1, "1.1TB": 1.1e12, "0.5K": 512, "2PiB": 2 << 50, "1024PiB": 1 << 60, " 7M ": 7 << 20,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "G", "0", "0.1", "-1", "+1G", "1e9", "1X", "1Gi", "1GiBs", "1 G B", "1025PiB", "1EiB", "NaN", "Inf", "0x10", "1_000", "1.2.3", "9999999999999999999999", "1/2", "1152921504606846977", "."} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is %d, want an error", text, got)
		}
	}
}

// TestFlags reads what flags take, and writes it again.
func TestFlags(t *testing.T) {
	amount, rate, count := new(Amount), new(Rate), new(Count)
	for _, c := range []struct {
		flag interface {
			Set(string) error
			String() string
		}
		text, want string // what is written of it, "" for an error
	}{
		{amount, "0", "0"}, {amount, "-1", "-1"}, {amount, "131072", "128KiB"}, {amount, "1.5TiB", "1536GiB"}, {amount, "1T", "1TiB"}, {amount, "0x1", ""}, {amount, "", ""}, {amount, "-1K", ""},
		{rate, "500MB/s", "500000000/s"}, {rate, "64MiB", "64MiB/s"}, {rate, "10G/s", "10GiB/s"}, {rate, "/s", ""}, {rate, "1MB/h", ""},
		{count, "2048", "2048"}, {count, "64k", "64000"}, {count, "1.5G", "1500000000"}, {count, "1T", "1000000000000"}, {count, "10B", "10000000000"}, {count, "100m", "100000000"},
		{count, "1.5", ""}, {count, "", ""}, {count, "k", ""}, {count, "1kk", ""}, {count, "-1", ""}, {count, "9000000T", "9000000000000000000"}, {count, "99999999T", ""}, {count, "1e3", ""}, {count, "1KB", ""},
	} {
		err := c.flag.Set(c.text)
		if (err != nil) != (c.want == "") || err == nil && c.flag.String() != c.want {
			t.Errorf("%T %q is %s, %v, want %q", c.flag, c.text, c.flag, err, c.want)
		}
	}
}

func TestBinary(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 64 << 20: "64MiB", 3 << 39: "1536GiB", 1 << 60: "1EiB", math.MaxInt64: "9223372036854775807"} {
		if got := Binary(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
		if n > 0 && n < 1<<60 {
			if back, err := Parse(Binary(n)); err != nil || back != n {
				t.Errorf("%d is written %q and read %d, %v", n, Binary(n), back, err)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"64MiB", "10G", "1.5TB", "", "e", "1e400"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := Parse(text); err == nil && (n < 1 || n > Most) {
			t.Errorf("%q is %d", text, n)
		}
	})
}

package layout

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func sampleManifest(t testing.TB, data []byte) *Manifest {
	t.Helper()
	m := &Manifest{Version: 1, Format: "nanogpt", DType: "u16", Tokenizer: "gpt2", Tokens: 7, Documents: 2,
		Files: []ManifestFile{{Name: "sub/train.bin", Tokens: 7, Documents: 2}}}
	if err := m.Files[0].SumFile(context.Background(), bytes.NewReader(data), int64(len(data))); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestManifestRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, ManifestBlock, ManifestBlock + 1, 3*ManifestBlock - 1} {
		data := bytes.Repeat([]byte{1, 2, 3}, size/3+1)[:size]
		m := sampleManifest(t, data)
		text, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseManifest(text)
		if err != nil {
			t.Fatal(err)
		}
		again, err := got.Marshal()
		if err != nil || !bytes.Equal(again, text) {
			t.Errorf("size %d: written again it differs (%v)", size, err)
		}
		if err := got.Files[0].Verify(context.Background(), bytes.NewReader(data)); err != nil {
			t.Errorf("size %d: %v", size, err)
		}
	}
}

// The sums of "123456789" are the published check values of SHA-256 and CRC-32C (RFC 3720 B.4's polynomial).
func TestManifestKnownSums(t *testing.T) {
	m := sampleManifest(t, []byte("123456789"))
	if got := m.Files[0].CRC32C; !reflect.DeepEqual(got, BlockSums{0xe3069283}) {
		t.Errorf("crc32c = %08x, want e3069283", got)
	}
	text, _ := m.Files[0].CRC32C.MarshalText()
	if string(text) != "g5IG4w==" {
		t.Errorf("crc32c in JSON = %s, want g5IG4w==", text)
	}
	if want := "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"; m.Files[0].SHA256 != want {
		t.Errorf("sha256 = %s, want %s", m.Files[0].SHA256, want)
	}
}

func TestManifestVerifyFindsDamage(t *testing.T) {
	data := bytes.Repeat([]byte("tokens"), ManifestBlock/2)
	f := &sampleManifest(t, data).Files[0]
	flipped := bytes.Clone(data)
	flipped[2*ManifestBlock+5] ^= 1
	wrongSum := *f
	wrongSum.SHA256 = strings.Repeat("0", 64)
	for _, tc := range []struct {
		name string
		file *ManifestFile
		data []byte
		want string
	}{
		{"a flipped bit", f, flipped, `verify "sub/train.bin": the block at byte 2097152 has crc32c`},
		{"a short file", f, data[:len(data)-1], "the file ends at byte 3145727 of 3145728"},
		{"a long file", f, append(bytes.Clone(data), 0), "goes on after its 3145728 bytes"},
		{"a wrong sha256", &wrongSum, data, "sha256 is"},
	} {
		err := tc.file.Verify(context.Background(), bytes.NewReader(tc.data))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.Verify(ctx, bytes.NewReader(data)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
}

func TestParseManifestRefuses(t *testing.T) {
	text, err := sampleManifest(t, []byte("123456789")).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, from, to, want string }{
		{"another version", `"hbmfs_manifest": 1`, `"hbmfs_manifest": 2`, "hbmfs_manifest is 2"},
		{"an unknown key", `"format"`, `"farmat"`, "unknown field"},
		{"a name above", `sub/train.bin`, `../train.bin`, "does not stay below"},
		{"an absolute name", `sub/train.bin`, `/etc/passwd`, "does not stay below"},
		{"a name that is not clean", `sub/train.bin`, `sub/../train.bin`, "does not stay below"},
		{"the directory itself", `sub/train.bin`, `.`, "does not stay below"},
		{"an empty name", `sub/train.bin`, ``, "does not stay below"},
		{"the manifest itself", `sub/train.bin`, ManifestName, "does not stay below"},
		{"a negative size", `"size": 9`, `"size": -9`, "must not be negative"},
		{"a size of 2^63-1", `"size": 9`, `"size": 9223372036854775807`, "crc32c has 1 sums"},
		{"a size over 64 bits", `"size": 9`, `"size": 9223372036854775808`, "cannot unmarshal"},
		{"tokens that do not add up", `"tokens": 7,` + "\n  \"doc", `"tokens": 8,` + "\n  \"doc", "8 tokens"},
		{"a block of zero", `"crc32c_block": 1048576`, `"crc32c_block": 0`, "crc32c_block is 0"},
		{"a block that is no power", `"crc32c_block": 1048576`, `"crc32c_block": 1048575`, "crc32c_block is 1048575"},
		{"no base64", `g5IG4w==`, `g5IG4w=!`, "not base64"},
		{"half a sum", `g5IG4w==`, `g5I=`, "no whole number"},
		{"a sum too many", `g5IG4w==`, `g5IG44OSBuM=`, "crc32c has 2 sums"},
		{"an unknown dtype", `"u16"`, `"u17"`, "not known"},
		{"a short sha256", `15e2b0d3`, ``, "sha256 is not"},
	} {
		bad := strings.Replace(string(text), tc.from, tc.to, 1)
		if bad == string(text) {
			t.Fatalf("%s: nothing was replaced", tc.name)
		}
		if _, err := ParseManifest([]byte(bad)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
	if _, err := ParseManifest(append(bytes.Clone(text), '{')); err == nil {
		t.Error("bytes after the object are taken")
	}
	for n := range text[:len(text)-1] {
		if _, err := ParseManifest(text[:n]); err == nil {
			t.Errorf("cut at %d of %d it is taken", n, len(text))
		}
	}
}

func TestParseManifestRefusesDuplicates(t *testing.T) {
	m := sampleManifest(t, []byte("x"))
	m.Files = append(m.Files, m.Files[0])
	m.Tokens, m.Documents = 14, 4
	if _, err := m.Marshal(); err == nil || !strings.Contains(err.Error(), "there twice") {
		t.Errorf("got %v", err)
	}
}

func FuzzParseManifest(f *testing.F) {
	for _, data := range []string{"", "123456789"} {
		text, err := sampleManifest(f, []byte(data)).Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			return
		}
		text, err := m.Marshal()
		if err != nil {
			t.Fatalf("what was parsed cannot be written: %v", err)
		}
		again, err := ParseManifest(text)
		if err != nil {
			t.Fatalf("what was written cannot be parsed: %v", err)
		}
		if third, err := again.Marshal(); err != nil || !bytes.Equal(text, third) {
			t.Fatalf("written twice it differs: %v\n%s\n%s", err, text, third)
		}
	})
}

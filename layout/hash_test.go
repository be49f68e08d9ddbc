package layout

import (
	"maps"
	"strings"
	"testing"
)

// TestVersionsWithAHash tells versions that are a hash from those of objects that are made of others.
func TestVersionsWithAHash(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	versions := map[string]int{
		SHA256Version + hex: 32, SHA256Version + hex + " etag": 32, GitVersion + hex[:40]: 20, MD5Version + hex[:32] + " etag": 16, CRC32CVersion + hex[:8] + " 17": 4,
		SHA256Version + hex + "-decoded": 0, SHA256Version + hex[:40]: 0, SHA256Version: 0, "member:sha256:" + hex + " 0/1": 0, CRC32CVersion + "-decoded": 0, "1": 0, "": 0,
	}
	for version, want := range maps.Clone(versions) {
		if want > 0 {
			versions[version+DecodedVersion], versions[version+DecodedVersion+"-0123456789abcdef"] = 0, 0
		}
	}
	for version, want := range versions {
		h, got := VersionHash(version, 1), 0
		if h != nil {
			got = h.Size()
		}
		if got != want {
			t.Errorf("%q has a hash of %d bytes, want %d", version, got, want)
		}
	}
}

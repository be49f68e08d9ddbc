package suggest

import (
	"slices"
	"testing"
)

func TestLike(t *testing.T) {
	words := []string{"mount", "umount", "cache-dir", "cache-size", "cache-segment", "cache-scrub", "json", "ls", "rm", "stats", "verify"}
	for text, want := range map[string][]string{
		"moutn": {"mount"}, "unmount": {"umount"}, "umuont": {"umount"}, "josn": {"json"}, "JSON": {"json"}, "sl": {"ls"}, "veri": {"verify"}, "status": {"stats"},
		"cache": {"cache-dir", "cache-scrub", "cache-segment"}, "cache-sise": {"cache-size"}, "x": nil, "": nil, "everything": nil, "l": {"ls"},
	} {
		if got := Like(text, words); !slices.Equal(got, want) {
			t.Errorf("%q is like %q, want %q", text, got, want)
		}
	}
}

func TestDid(t *testing.T) {
	for text, want := range map[string]string{
		"josn": ": did you mean --json?", "jso": ": did you mean --json?", "no": "", "cache": ": did you mean --cache-a, --cache-b or --cache-c?",
	} {
		if got := Did(text, "--", []string{"json", "cache-c", "cache-b", "cache-a", "cache-d"}); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := Did("al", "", []string{"all", "ale"}); got != ": did you mean ale or all?" {
		t.Error(got)
	}
}

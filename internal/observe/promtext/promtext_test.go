package promtext

import "testing"

func TestPageOfSeveralMounts(t *testing.T) {
	p := Page{Terse: true}
	p.Merge("# HELP a All.\n# TYPE a counter\na 1\na{x=\"{ }\"} 2\n# HELP b Bytes.\n# TYPE b gauge\nb 3\n", "volume", "1")
	p.Merge("# HELP a All.\n# TYPE a counter\na 4\n# a comment\n# HELP c None.\n# TYPE c gauge\n", "volume", "2")
	p.Merge("no metric at all\n", "volume", "3")
	p.Gauge("d", "Mine.").Add(5)
	p.Gauge("e", "Without samples.")
	want := `# HELP a All.
# TYPE a counter
a{volume="1"} 1
a{volume="1",x="{ }"} 2
a{volume="2"} 4
# HELP b Bytes.
# TYPE b gauge
b{volume="1"} 3
# HELP d Mine.
# TYPE d gauge
d 5
`
	if got := p.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Go's own quoting has escapes that Prometheus refuses, and with them the whole page.
func TestLabels(t *testing.T) {
	var p Page
	p.Gauge("m", "M.").Add(true, "a", "tab\t\u200b", "b", "\"\\\n", "c", "\xff")
	want := "# HELP m M.\n# TYPE m gauge\nm{a=\"tab\t\u200b\",b=\"\\\"\\\\\\n\",c=\"\uFFFD\"} 1\n"
	if got := p.String(); got != want {
		t.Errorf("labels are written as %q, want %q", got, want)
	}
}

package promtext

import "testing"

func TestPageOfSeveralMounts(t *testing.T) {
	var p Page
	p.Add("# HELP a All.\n# TYPE a counter\na 1\na{x=\"{ }\"} 2\n# HELP b Bytes.\n# TYPE b gauge\nb 3\n", `volume="1"`)
	p.Add("# HELP a All.\n# TYPE a counter\na 4\n# a comment\n# HELP c None.\n# TYPE c gauge\n", `volume="2"`)
	p.Add("no metric at all\n", `volume="3"`)
	p.Metric("d", "gauge", "Mine.", " 5")
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
	if got := Quote("a\"b\\c\nd\xff"); got != `"a\"b\\c\nd`+"\uFFFD\"" {
		t.Error(got)
	}
}

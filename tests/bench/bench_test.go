package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNewSpread(t *testing.T) {
	tests := []struct {
		values []float64
		want   spread
	}{
		{[]float64{3}, spread{3, 3, 3, 1}},
		{[]float64{5, 1, 3}, spread{3, 1, 5, 3}},
		{[]float64{4, 1, 2, 9}, spread{3, 1, 9, 4}},
	}
	for _, tt := range tests {
		if got := newSpread(tt.values); got != tt.want {
			t.Errorf("newSpread(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestCompareAlternatesAndDropsTheFirstRound(t *testing.T) {
	var order strings.Builder
	side := func(name string, rates ...float64) measure {
		return func(_ context.Context, seed uint64) (float64, error) {
			order.WriteString(name)
			return rates[seed], nil
		}
	}
	ratio, mount, base, err := compare(t.Context(), 2, side("a", 99, 3, 8), side("b", 1, 6, 8))
	if err != nil {
		t.Fatal(err)
	}
	if order.String() != "bababa" {
		t.Errorf("order %q, want bababa", order.String())
	}
	if want := (spread{0.75, 0.5, 1, 2}); ratio != want {
		t.Errorf("ratio = %v, want %v", ratio, want)
	}
	if mount.Max != 8 || base.Min != 6 {
		t.Errorf("mount %v, baseline %v: the first round was kept", mount, base)
	}
}

func TestProbesReadWhatTheyClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, 3*sampleBytes+1), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, p := range probes() {
		if rate, err := p.read(t.Context(), path, 1); err != nil || rate <= 0 {
			t.Errorf("%s: rate %v, error %v", p.name, rate, err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, p := range probes() {
		if _, err := p.read(cancelled, path, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("%s after cancel: %v, want context.Canceled", p.name, err)
		}
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, p := range probes() {
		if rate, err := p.read(t.Context(), path, 1); err == nil {
			t.Errorf("%s of an empty file: rate %v, want an error", p.name, rate)
		}
	}
}

func TestWriteShards(t *testing.T) {
	dir := t.TempDir()
	if err := writeShards(t.Context(), dir, 2, 5); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bench_train_000000.bin", "bench_train_000001.bin"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) != llmcHeaderBytes+10 || !bytes.HasPrefix(data, llmcHeader(5)) {
			t.Errorf("%s: %d bytes, header % x", name, len(data), data[:12])
		}
	}
}

// The index's fields are read back by the arithmetic of the format's table, not by the writer's code.
func TestWriteMegatronIndex(t *testing.T) {
	var buf bytes.Buffer
	const tokens, sequences = 103, 10
	if err := writeMegatronIndex(&buf, tokens, sequences); err != nil {
		t.Fatal(err)
	}
	b := buf.Bytes()
	if want := 34 + 12*sequences + 8*(sequences+1); len(b) != want {
		t.Fatalf("index of %d bytes, want %d", len(b), want)
	}
	at := 0
	for i := range sequences {
		length := int(binary.LittleEndian.Uint32(b[34+4*i:]))
		pointer := int(binary.LittleEndian.Uint64(b[34+4*sequences+8*i:]))
		if pointer != at {
			t.Errorf("sequence %d at byte %d, want %d", i, pointer, at)
		}
		at += 2 * length
	}
	if at != 2*tokens {
		t.Errorf("sequences cover %d bytes, want %d", at, 2*tokens)
	}
	if last := binary.LittleEndian.Uint64(b[len(b)-8:]); last != sequences {
		t.Errorf("last document index %d, want %d", last, sequences)
	}
}

func sample() report {
	return report{
		Comparisons: []comparison{
			{Name: "good", Ratio: spread{0.99, 0.9, 1.2, 3}, Target: 0.95},
			{Name: "bad <&>", Ratio: spread{0.5, 0.4, 0.6, 3}, Target: 0.95},
		},
		Limits: []limit{{Name: "slow", Unit: "s", Value: spread{2, 1, 3, 3}, Limit: 1}, {Name: "free", Unit: "s"}},
	}
}

func TestMissed(t *testing.T) {
	r := sample()
	if got := strings.Join(r.missed(), ","); got != "bad <&>,slow" {
		t.Errorf("missed %q", got)
	}
	if text := r.markdown(); strings.Count(text, "MISSED") != 2 {
		t.Errorf("the document does not show both misses:\n%s", text)
	}
}

func TestSaveWritesItsPartOfThePage(t *testing.T) {
	docs, r := t.TempDir(), sample()
	page := filepath.Join(docs, "benchmarks.md")
	if err := r.save("", docs); err == nil {
		t.Error("a page was made")
	}
	for _, part := range []string{"", "old\n"} {
		if err := os.WriteFile(page, []byte("before\n"+partBegins+part+partEnds+"\nafter\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := r.save("", docs); err != nil {
			t.Fatal(err)
		}
		want := "before\n" + partBegins + "\n\n" + r.markdown() + partEnds + "\nafter\n"
		if got, err := os.ReadFile(page); err != nil || string(got) != want {
			t.Errorf("the page is %q, %v; want %q", got, err, want)
		}
	}
	if err := os.WriteFile(page, []byte("no part\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.save("", docs); err == nil {
		t.Error("a page without a part was written")
	}
}

func TestPlotIsXML(t *testing.T) {
	decoder := xml.NewDecoder(strings.NewReader(plot(sample().Comparisons)))
	rects := 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "rect" {
			rects++
		}
	}
	if rects != 5 { // the background, two bars, and two of the legend
		t.Errorf("%d rectangles, want 5", rects)
	}
}

package plan

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"image"
	_ "image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

func writePage(t *testing.T, r *Report) []byte {
	t.Helper()
	var page bytes.Buffer
	if err := r.WriteHTML(&page); err != nil {
		t.Fatal(err)
	}
	return page.Bytes()
}

func TestPageNeedsNothingElse(t *testing.T) {
	r := build(t, oneFast, Measured())
	r.Nodes[0].Name = `</script><script>alert("a name")</script>`
	page := writePage(t, r)
	if len(page) > 1e6 {
		t.Errorf("the page has %d bytes", len(page))
	}
	start := bytes.Index(page, []byte(`id="report">`)) + len(`id="report">`)
	end := start + bytes.Index(page[start:], []byte("</script>"))
	var back Report
	if err := json.Unmarshal(page[start:end], &back); err != nil || back.Nodes[0].Name != r.Nodes[0].Name {
		t.Errorf("the report does not survive the page: %v", err)
	}
	if bytes.Contains(page, []byte(`<script>alert("a name")`)) {
		t.Error("a node's name became a script")
	}
	for _, part := range []string{pageHTML, pageStyle, pageScript} {
		if found := regexp.MustCompile(`(src|href)=|url\(|@import|https?:`).FindString(part); found != "" {
			t.Errorf("the page loads something: %s", found)
		}
	}
}

func TestChartLibrariesAreTheBuiltOnes(t *testing.T) {
	readme, err := os.ReadFile("page/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(pageCharts))); !strings.Contains(string(readme), sum) {
		t.Errorf("page/README.md does not know the sum %s", sum)
	}
}

// browser runs a headless Chromium on a page, and gives what it printed.
func browser(t *testing.T, page string, flags ...string) string {
	t.Helper()
	name := ""
	for _, candidate := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if found, err := exec.LookPath(candidate); err == nil {
			name = found
			break
		}
	}
	if name == "" {
		t.Skip("needs chromium")
	}
	// Not t.TempDir: a browser's helpers may still write when it has ended, and that is no failure.
	profile, err := os.MkdirTemp("", "hbmfs-plan-browser-*")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(profile) }()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	args := append([]string{
		"--headless", "--no-sandbox", "--disable-dev-shm-usage", "--user-data-dir=" + profile,
		"--window-size=1280,4600", "--hide-scrollbars", "--virtual-time-budget=15000",
	}, flags...)
	cmd := exec.CommandContext(ctx, name, append(args, "file://"+page)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, stderr.String())
	}
	return string(out)
}

// The page is looked at: every chart is there, nothing failed, and what is drawn has the paths' colours.
func TestPageInABrowser(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "report.html")
	if err := os.WriteFile(page, writePage(t, exampleReport(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	shot, paper := filepath.Join(dir, "report.png"), filepath.Join(dir, "report.pdf")
	dom := browser(t, page, "--dump-dom", "--screenshot="+shot, "--print-to-pdf="+paper)
	if !strings.Contains(dom, `data-state="ready"`) {
		t.Fatalf("the page is not ready: %s", regexp.MustCompile(`<body[^>]*>|<p id="errors">[^<]*`).FindAllString(dom, -1))
	}
	if charts := strings.Count(dom, "<svg"); charts != 4 {
		t.Errorf("%d two-dimensional charts are drawn, not 4", charts)
	}
	if canvases := strings.Count(dom, "<canvas"); canvases != 1 {
		t.Error("the surface is not drawn")
	}
	for _, text := range []string{"eight H200 on two sockets", "between sockets", "weights of 70 billion", "Is registering worth it?"} {
		if !strings.Contains(dom, ">"+text) {
			t.Errorf("the page does not show %q", text)
		}
	}

	seen := colours(t, shot)
	for name, colour := range map[string][3]uint32{"mapped": {0x1a, 0x7f, 0x37}, "staged": {0x09, 0x69, 0xda}, "plain": {0xbc, 0x4c, 0x00}, "direct": {0x82, 0x50, 0xdf}} {
		if seen[colour] < 500 {
			t.Errorf("%d pixels have the colour of %s", seen[colour], name)
		}
	}
	if len(seen) < 500 {
		t.Errorf("the picture has %d colours, too few for a surface", len(seen))
	}

	printed, err := os.ReadFile(paper)
	if err != nil || !bytes.HasPrefix(printed, []byte("%PDF-")) {
		t.Fatalf("it does not print: %v", err)
	}
	if pages := len(regexp.MustCompile(`/Type\s*/Page\b[^s]`).FindAll(printed, -1)); pages < 3 || pages > 12 {
		t.Errorf("it prints on %d pages", pages)
	}
}

// colours counts the pixels of each colour of a PNG.
func colours(t *testing.T, name string) map[[3]uint32]int {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	picture, _, err := image.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[[3]uint32]int{}
	for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y; y++ {
		for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X; x++ {
			r, g, b, _ := picture.At(x, y).RGBA()
			seen[[3]uint32{r >> 8, g >> 8, b >> 8}]++
		}
	}
	return seen
}

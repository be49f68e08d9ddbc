package fetch

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// Guard keeps an origin away from services that only this machine may ask: its own (loopback), those of its link, and its
// cloud's metadata. The last gives out the machine's role. It judges each address that is dialled, so neither a name that
// resolves to one nor a redirect leads there. Where a proxy dials, the proxy has to judge names; the guard judges
// addresses in URLs.
//
// A nil Guard refuses nothing.
type Guard struct {
	allow    []netip.Prefix
	resolver *net.Resolver // nil for the system's
}

// NewGuard makes a guard that allows some of the addresses that it would refuse, each as 127.0.0.1 or as 127.0.0.0/8.
func NewGuard(allow []string) (*Guard, error) {
	g := &Guard{}
	for _, text := range allow {
		p, err := netip.ParsePrefix(text)
		if addr, addrErr := netip.ParseAddr(text); addrErr == nil {
			addr = addr.Unmap().WithZone("")
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is no address such as 127.0.0.1 and no prefix such as 127.0.0.0/8", text)
		}
		g.allow = append(g.allow, p.Masked())
	}
	return g, nil
}

// Transport returns a round tripper that works as t does, under the guard. A proxy that t knows is the operator's, and may
// be at any address.
func (g *Guard) Transport(t *http.Transport) http.RoundTripper {
	if g == nil {
		return t
	}
	direct := t.Clone()
	direct.Proxy = nil
	direct.DialContext = (&net.Dialer{
		Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Resolver: g.resolver, // as of http.DefaultTransport
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			a, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("%w: %q is no address", fs.ErrPermission, address)
			}
			return g.judge(a.Addr())
		},
	}).DialContext
	return &guarded{guard: g, direct: direct, proxied: t}
}

// guarded sends a request to its server under the guard, or to a proxy.
type guarded struct {
	guard           *Guard
	direct, proxied *http.Transport
}

// RoundTrip implements [http.RoundTripper].
func (r *guarded) RoundTrip(q *http.Request) (*http.Response, error) {
	var proxy *url.URL
	if r.proxied.Proxy != nil {
		var err error
		if proxy, err = r.proxied.Proxy(q); err != nil {
			return nil, err
		}
	}
	if proxy == nil {
		return r.direct.RoundTrip(q)
	}
	if err := r.guard.judgeHost(q.URL.Hostname()); err != nil {
		return nil, err
	}
	return r.proxied.RoundTrip(q)
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (r *guarded) CloseIdleConnections() {
	r.direct.CloseIdleConnections()
	r.proxied.CloseIdleConnections()
}

// judgeHost judges the host that a proxy is asked for, as far as its name is an address.
func (g *Guard) judgeHost(host string) error {
	if a, err := netip.ParseAddr(host); err == nil {
		return g.judge(a)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	if name == "localhost" || last == "localhost" {
		return g.judge(netip.IPv6Loopback())
	}
	if last == "" || last[0] >= '0' && last[0] <= '9' { // 2852039166 and 0xa9.254.43518 are addresses to some proxies
		return fmt.Errorf("%w: the host %q is neither a name nor an address as it is written today", fs.ErrPermission, host)
	}
	return nil
}

// judge refuses an address that is not for everybody, unless it is allowed.
func (g *Guard) judge(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	why := private(a)
	if why == "" {
		return nil
	}
	for _, p := range g.allow {
		if p.Contains(a) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s is %s, which this mount may not ask unless its operator allows it (--allow-address, allowAddresses of the chart)", fs.ErrPermission, a, why)
}

// private returns the kind of an address that only this machine should ask, "" for all others. The addresses of metadata
// services that are not link-local are those that the clouds document.
func private(a netip.Addr) string {
	if v4, ok := carried(a); ok {
		return private(v4)
	}
	switch {
	case a.IsLoopback():
		return "a loopback address"
	case a.IsUnspecified(), a.Is4() && a.As4()[0] == 0:
		return "an unspecified address, which means this machine"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "an address of many machines"
	}
	for _, p := range []netip.Prefix{
		netip.MustParsePrefix("fd00:ec2::/32"),      // AWS: ::254, and ::23 for EKS
		netip.MustParsePrefix("fd20:ce::254/128"),   // Google
		netip.MustParsePrefix("168.63.129.16/32"),   // Azure
		netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
		netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
		netip.MustParsePrefix("fd00:c1::/32"),       // Oracle
		netip.MustParsePrefix("fd00:42::42/128"),    // Scaleway
	} {
		if p.Contains(a) {
			return "a cloud's metadata service"
		}
	}
	return ""
}

// carried returns the IPv4 address that a gateway makes of an IPv6 address: NAT64 (RFC 6052, 8215), SIIT (RFC 7915), 6to4 (RFC
// 3056), and the compatible addresses of RFC 4291.
func carried(a netip.Addr) (v4 netip.Addr, ok bool) {
	if !a.Is6() || a.IsLoopback() || a.IsUnspecified() {
		return a, false
	}
	b := a.As16()
	for _, p := range []netip.Prefix{
		netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("::ffff:0:0:0/96"), netip.MustParsePrefix("::/96"),
	} {
		if p.Contains(a) {
			return netip.AddrFrom4([4]byte(b[12:])), true
		}
	}
	if netip.MustParsePrefix("2002::/16").Contains(a) {
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return a, false
}
